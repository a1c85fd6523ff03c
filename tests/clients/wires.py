"""The four APIs that clients speak to models: what a request holds, and how a reply is written.

Anthropic's Messages, OpenAI's Responses and Chat Completions, Gemini's generateContent. Only what
the clients in this directory use of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = Any


@dataclass(frozen=True)
class Received:
    """What a model receives for one call of a tool.

    Attributes:
        call: The id of the call; where the API has none, the name of the tool.
        text: All text, with whatever the client puts around it.
        pictures: The media types of the pictures.
    """

    call: str
    text: str
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """One request to a model.

    Attributes:
        tools: Each tool's definition by its name, as the model is given it.
        told: All other text: the client's instructions, and what was said so far.
        results: What the calls of tools so far have given, in order.
    """

    tools: Mapping[str, Json]
    told: str
    results: tuple[Received, ...]


@dataclass(frozen=True)
class Say:
    """A reply that ends the turn."""

    text: str


@dataclass(frozen=True)
class Use:
    """A reply that calls a tool."""

    call: str
    tool: str
    arguments: Mapping[str, Json]


Reply = Say | Use


class Wire(Protocol):
    """One API."""

    def asked(self, body: Json) -> Asked:
        """Return what a request holds."""

    def events(self, body: Json, reply: Reply) -> list[Json]:
        """Return the events of a streamed reply."""

    def whole(self, body: Json, reply: Reply) -> Json:
        """Return a reply that is not streamed."""


def wire_of(path: str) -> Wire | None:
    """Return which API a request's path belongs to; None if to none."""
    path = path.partition("?")[0]
    if path.endswith("/messages"):
        return Messages()
    if path.endswith("/responses"):
        return Responses()
    if path.endswith("/chat/completions"):
        return ChatCompletions()
    if path.endswith(("enerateContent",)):
        return Gemini()
    return None


class Messages:
    """Anthropic's Messages."""

    def asked(self, body: Json) -> Asked:
        results: list[Received] = []
        told = list(_texts(body.get("system")))
        for message in body.get("messages", ()):
            for block in _blocks(message["content"]):
                if block["type"] == "tool_result":
                    parts = _blocks(block.get("content"))
                    results.append(Received(block["tool_use_id"], _joined(parts), _media(parts)))
                elif block["type"] == "text":
                    told.append(block["text"])
        tools = {tool["name"]: tool for tool in body.get("tools", ())}
        return Asked(tools, "\n".join(told), tuple(results))

    def events(self, body: Json, reply: Reply) -> list[Json]:
        message = self.whole(body, reply)
        (block,) = message["content"]
        begun: Json
        delta: Json
        if isinstance(reply, Use):
            begun = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            begun = {**block, "text": ""}
            delta = {"type": "text_delta", "text": reply.text}
        usage, reason = message["usage"], message["stop_reason"]
        return [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": begun},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage},
            {"type": "message_stop"},
        ]

    def whole(self, body: Json, reply: Reply) -> Json:
        block: Json = {"type": "text", "text": reply.text} if isinstance(reply, Say) else None
        if isinstance(reply, Use):
            use = {"id": reply.call, "name": reply.tool, "input": dict(reply.arguments)}
            block = {"type": "tool_use", **use}
        return {
            "id": "message",
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [block],
            "stop_reason": "tool_use" if isinstance(reply, Use) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }


class Responses:
    """OpenAI's Responses.

    The tools of a server may stand in a namespace of its name, which may be held back until it is
    searched for.
    """

    def asked(self, body: Json) -> Asked:
        results: list[Received] = []
        told = list(_texts(body.get("instructions")))
        offered = list(body.get("tools", ()))
        for item in body.get("input", ()):
            if item.get("type") == "function_call_output":
                parts = _blocks(item["output"])
                results.append(Received(item["call_id"], _joined(parts), _media(parts)))
            elif item.get("type") == "tool_search_output":
                results.append(Received(item["call_id"], json.dumps(item["tools"])))
                offered += item["tools"]
            elif item.get("type", "message") == "message":
                told += _texts(item["content"])
        tools: dict[str, Json] = {}
        for tool in offered:
            inner = tool.get("tools", ())
            told += [tool.get("description", "")] if inner else []
            for each in inner or [tool]:
                name = each.get("name", each.get("type"))
                tools[f"{tool['name']}.{name}" if inner else name] = each
        return Asked(tools, "\n".join(told), tuple(results))

    def events(self, body: Json, reply: Reply) -> list[Json]:
        response = self.whole(body, reply)
        (item,) = response["output"]
        begun = {**response, "status": "in_progress", "output": []}
        return [
            {"type": "response.created", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response},
        ]

    def whole(self, body: Json, reply: Reply) -> Json:
        if isinstance(reply, Say):
            text = {"type": "output_text", "text": reply.text, "annotations": []}
            item: Json = {"type": "message", "id": "message", "role": "assistant"}
            item |= {"status": "completed", "content": [text]}
        elif reply.tool == "tool_search":
            item = {"type": "tool_search_call", "call_id": reply.call, "execution": "client"}
            item |= {"status": "completed", "arguments": dict(reply.arguments)}
        else:
            space, _, name = reply.tool.rpartition(".")
            item = {"type": "function_call", "id": "function", "call_id": reply.call, "name": name}
            item |= {"status": "completed", "arguments": json.dumps(reply.arguments)}
            item |= {"namespace": space} if space else {}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        response = {"id": "response", "object": "response", "status": "completed"}
        return {**response, "output": [item], "usage": usage}


class ChatCompletions:
    """OpenAI's Chat Completions. A picture of a tool comes as a message of the user after it."""

    def asked(self, body: Json) -> Asked:
        results: list[Received] = []
        told: list[str] = []
        answered = False
        for message in body.get("messages", ()):
            parts = _blocks(message.get("content"))
            if message["role"] == "tool":
                results.append(Received(message["tool_call_id"], _joined(parts), _media(parts)))
            elif answered and message["role"] == "user" and _media(parts):
                last = results[-1]
                results[-1] = Received(last.call, last.text, last.pictures + _media(parts))
            else:
                told.append(_joined(parts))
            answered = message["role"] == "tool" or (answered and message["role"] == "user")
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools", ())}
        return Asked(tools, "\n".join(told), tuple(results))

    def events(self, body: Json, reply: Reply) -> list[Json]:
        whole = self.whole(body, reply)
        (choice,) = whole["choices"]
        told = {key: value for key, value in whole.items() if key not in ("choices", "usage")}
        told["object"] = "chat.completion.chunk"
        first = {"index": 0, "delta": choice["message"], "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        return [
            {**told, "choices": [first]},
            {**told, "choices": [last], "usage": whole["usage"]},
            "[DONE]",
        ]

    def whole(self, body: Json, reply: Reply) -> Json:
        message: Json = {"role": "assistant"}
        if isinstance(reply, Say):
            message["content"] = reply.text
        else:
            function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
            call = {"index": 0, "id": reply.call, "type": "function", "function": function}
            message["tool_calls"] = [call]
        reason = "stop" if isinstance(reply, Say) else "tool_calls"
        return {
            "id": "completion",
            "object": "chat.completion",
            "created": 1,
            "model": body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


class Gemini:
    """Gemini's generateContent. Calls have no ids; a picture stands beside the result."""

    def asked(self, body: Json) -> Asked:
        results: list[Received] = []
        told = [part.get("text", "") for part in body.get("systemInstruction", {}).get("parts", ())]
        for content in body.get("contents", ()):
            begun = len(results)
            for part in content["parts"]:
                if "functionResponse" in part:
                    answer = part["functionResponse"]
                    response = answer["response"]
                    text = response.get("output", response.get("error"))
                    text = text if isinstance(text, str) else json.dumps(response)
                    media = _inline(answer.get("parts", ()))
                    results.append(Received(answer["name"], text, media))
                elif len(results) > begun:
                    last = results[-1]
                    text = "\n".join(filter(None, (last.text, part.get("text"))))
                    results[-1] = Received(last.call, text, last.pictures + _inline([part]))
                else:
                    told.append(part.get("text", ""))
        tools = {
            each["name"]: each
            for tool in body.get("tools", ())
            for each in tool.get("functionDeclarations", ())
        }
        return Asked(tools, "\n".join(told), tuple(results))

    def events(self, body: Json, reply: Reply) -> list[Json]:
        return [self.whole(body, reply)]

    def whole(self, body: Json, reply: Reply) -> Json:
        part: Json = {"text": reply.text} if isinstance(reply, Say) else None
        if isinstance(reply, Use):
            part = {"functionCall": {"name": reply.tool, "args": dict(reply.arguments)}}
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        candidate = {"content": content, "finishReason": "STOP", "index": 0}
        return {"candidates": [candidate], "usageMetadata": usage}


def _blocks(content: Json) -> list[Json]:
    """Return content as a list of blocks, which all the APIs let stand for one text."""
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _texts(content: Json) -> Iterator[str]:
    for block in _blocks(content):
        if "text" in block:
            yield block["text"]


def _joined(blocks: Sequence[Json]) -> str:
    return "\n".join(_texts(blocks))


def _media(blocks: Sequence[Json]) -> tuple[str, ...]:
    return tuple(filter(None, map(_medium, blocks)))


def _medium(block: Json) -> str:
    """Return the media type of a picture; empty if the block is none."""
    if block["type"] == "image":
        return str(block["source"]["media_type"])
    address = block.get("image_url", "")
    address = address.get("url", "") if isinstance(address, dict) else address
    return str(address.removeprefix("data:").partition(";")[0])


def _inline(parts: Iterable[Json]) -> tuple[str, ...]:
    return tuple(part["inlineData"]["mimeType"] for part in parts if "inlineData" in part)
