"""
ask: 'Every NOUN holds a letter. Write the row with a run of equal letters as the letter and its number: aab is a2b1.'
items: letters
ordered: true
answer: {type: string}
"""

# %% solve
def solve(items):
    packed, place = "", 0
    while place < len(items):
        end = place
        while end < len(items) and items[end] == items[place]:
            end += 1
        packed, place = packed + f"{items[place]}{end - place}", end
    return packed

# %% check
def check(items):
    runs = []
    for letter in items:
        if runs and runs[-1][0] == letter:
            runs[-1] += letter
        else:
            runs.append(letter)
    return "".join(f"{run[0]}{len(run)}" for run in runs)
