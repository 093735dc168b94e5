"""A stand-in: remembers the seed."""


class random:
    state = None

    @classmethod
    def seed(cls, number):
        cls.state = number
