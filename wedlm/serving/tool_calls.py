"""The parts of an answer."""


class AnswerParser:
    @staticmethod
    def of(body, served):
        return None
