"""RequestError: a request that is answered by an error, as OpenAI's and Anthropic's clients expect it."""

from typing import Any

# Status -> the error's type for Anthropic's clients and, where it is another, for OpenAI's.
TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    413: ("request_too_large", "invalid_request_error"),
    415: ("invalid_request_error", "invalid_request_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("api_error", "server_error"),
    503: ("overloaded_error", "unavailable_error"),
    504: ("timeout_error", "timeout_error"),
}
SHUTTING_DOWN = "The server is shutting down."


class RequestError(Exception):
    """One sentence, with the name of the parameter that it is about; `retry_after` is in seconds."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.message, self.param, self.status, self.code, self.retry_after = message, param, status, code, retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}

    def openai(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, TYPES[500])[1]
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, TYPES[500])[0]
        named = self.param is None or self.param in self.message
        message = self.message if named else f"{self.param}: {self.message}"
        return {"type": "error", "error": {"type": kind, "message": message}}

    def body(self, path: str) -> dict[str, Any]:
        """The answer's body, in the form of the endpoint's API."""
        return self.anthropic() if path.startswith("/v1/messages") else self.openai()
