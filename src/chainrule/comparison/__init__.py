"""Train several families under one budget, score all of them on the same held-out data, and recommend one."""
