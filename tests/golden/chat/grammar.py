def case(seed):
    raise NotImplementedError
