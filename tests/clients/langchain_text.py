"""The text of LangChain's messages."""


def text_of(message):
    """The text of a message; versions before 1 have a method."""
    return message.text if isinstance(message.text, str) else message.text()
