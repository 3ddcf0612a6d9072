"""Our own decompositions, by subject. Each module registers its functions with torch_fl.ops.decompositions.

They run below autograd and see device tensors. They use operators, never a tensor's values on the host, except where
the result's shape depends on values (unique, nonzero_static, ...).
"""
