"""What to do with uncertainty: which labels are wrong, what to trust, when to answer.

`labels.py` ranks wrong labels, by leave-one-out predictions (`leaving_out.py`) from gradients in few coordinates
(`gradients.py`).
"""
