"""What ``tree_search`` is made of: the tree and its growth, its values, the orders of search, what is left of it."""
