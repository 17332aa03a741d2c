"""Numbers in SamplingParams that nobody gave."""


class Default:
    """Marks a number that nobody gave: a checkpoint's own default takes its place where a request is prepared (see
    `RequestBuilder.check`). Until then it is the number that it reads as, also after a copy or `dataclasses.replace`."""


class DefaultFloat(Default, float):
    """A float that nobody gave."""


class DefaultInt(Default, int):
    """An int that nobody gave."""
