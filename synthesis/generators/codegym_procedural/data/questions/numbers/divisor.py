"""
ask: What is the largest number that divides what every NOUN holds?
items: multiples
"""

# %% solve
def solve(items):
    divisor = 0
    for item in items:
        while item:
            divisor, item = item, divisor % item
    return divisor

# %% check
def check(items):
    return max(number for number in range(1, max(items) + 1) if all(item % number == 0 for item in items))
