"""What to do with uncertainty: which labels are wrong, which inputs are unfamiliar, when to answer.

`labels.py` ranks wrong labels, by leave-one-out predictions (`leaving_out.py`) from gradients in few coordinates
(`gradients.py`) or from features of columns (`columns.py`). `ood.py` flags unfamiliar inputs by the scores of
`scores.py`. Answers with a bounded risk, and jackknife+, are methods of `Posterior`.
"""
