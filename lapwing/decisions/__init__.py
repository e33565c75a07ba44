"""What to do with uncertainty: which labels are wrong, which inputs are unfamiliar, what to label, when to answer.

`labels.py` ranks wrong labels, by leave-one-out predictions (`leaving_out.py`) from gradients in few coordinates
(`gradients.py`) or from features of columns (`columns.py`). `ood.py` flags unfamiliar inputs by the scores of
`scores.py`. `acquisition.py` chooses inputs to label, by the joint predictions of `pool.py` and the information in
batches of `information.py`. Answers with a bounded risk, and jackknife+, are methods of `Posterior`.
"""
