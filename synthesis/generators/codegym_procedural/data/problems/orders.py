"""
about: You work PLACE. You hand out NOUNS to orders. An order RULE.
question: Serve all orders, ORDER, and say that it is done. Those that get nothing are served with 0.
tools:
  - name: orders
    description: The names of the orders, in the order in which they came.
  - name: order
    description: What an order wants, and how urgent it is.
    parameters: {name: {type: string}}
  - name: stock
    description: How many NOUNS are left.
  - name: serve
    description: Gives NOUNS to an order, once.
    parameters: {name: {type: string}, amount: {type: integer}}
"""

# %% instances
def draw(chance, size):
    count = max(2, size // 2)
    waiting = [{'name': f'{letter}{chance.randint(1, 9)}', 'amount': chance.randint(1, 9),
        'urgency': chance.randint(1, 3)} for letter in chance.sample('ABCDEFGHKLMN', count)]
    total = sum(order['amount'] for order in waiting)
    return {'waiting': waiting, 'stock': chance.randint(total // 3 + 1, total - 1), 'served': {}}
def given(instance):
    return {}

# %% code

def _find(state, name):
    for each in state["waiting"]:
        if each["name"] == name:
            return each
    raise Refused(f"There is no order {name}.")
def orders(state):
    return [each["name"] for each in state["waiting"]]
def order(state, name):
    found = _find(state, name)
    return {"amount": found["amount"], "urgency": found["urgency"]}
def stock(state):
    return state["stock"]
def serve(state, name, amount):
    _find(state, name)
    if name in state["served"]:
        raise Refused(f"{name} was served already.")
    if not 0 <= amount <= state["stock"]:
        raise Refused("There is not so much left.")
    state["served"][name] = amount
    state["stock"] -= amount
    return "served"
def outcome(state):
    return state["served"]

# %% solution
def solve(instance):
    waiting, stock, served = instance['waiting'], instance['stock'], {}
    for order in RANKED:
        served[order['name']] = TAKEN
        stock -= served[order['name']]
    return served

# %% oracle
def oracle(call, given):
    waiting, stock = [], call('stock')
    for name in call('orders'):
        waiting.append({'name': name, **call('order', name=name)})
    for order in RANKED:
        amount = TAKEN
        call('serve', name=order['name'], amount=amount)
        stock -= amount
