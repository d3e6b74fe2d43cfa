"""The contenders, one file for each kind, which is imported in their own processes alone.

Each function trains as ``work`` says, tells ``turns`` of each step, and returns the weights at the
end, on rank 0.
"""
