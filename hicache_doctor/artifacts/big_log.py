def read_big(source, vocabulary, result):
    raise NotImplementedError
