"""Libraries that sit on the official clients or speak the forms by themselves: LiteLLM, instructor, LangChain, Pydantic AI, LlamaIndex,
huggingface_hub and lm-eval.

usage: libraries.py URL

What is not installed is named and skipped.
"""

import contextlib
import functools
import importlib.metadata
import io
import json
import math
import os
import pathlib
import sys
import tempfile
import typing
import urllib.request
import warnings

SCRATCH = tempfile.TemporaryDirectory()
# Nothing is fetched from elsewhere, and nothing is left behind.
os.environ.update(HF_HOME=SCRATCH.name, HF_DATASETS_OFFLINE="1", LITELLM_LOCAL_MODEL_COST_MAP="True", LMEVAL_LOG_LEVEL="ERROR")
warnings.simplefilter("ignore")

import pydantic

URL = sys.argv[1]
V1 = URL + "/v1"
QUESTION = 'What does "ember" mean?'
MESSAGES = [{"role": "user", "content": QUESTION}]
TOO_LONG = "ember " * 3000


def ask(path: str, **body) -> dict:
    """What the server answers without any library."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


TEXT = ask("/v1/chat/completions", messages=MESSAGES, temperature=0, max_tokens=100)["choices"][0]["message"]["content"]
assert "ember" in TEXT, TEXT


class Entry(pydantic.BaseModel):
    """How hot a thing is."""

    model_config = pydantic.ConfigDict(extra="forbid")
    word: typing.Literal["ember", "coal"]
    degrees: int = pydantic.Field(ge=0, le=100)
    is_hot: bool


def look_up(word: typing.Literal["ember", "coal"]) -> str:
    """Looks up a word."""
    return f"{word}: hot"


def fails(kind: type, call, *arguments, **named):
    """Clients shorten a conversation when they meet this kind of error."""
    try:
        call(*arguments, **named)
    except kind:
        return
    raise AssertionError(f"{call} did not fail with {kind}")


def litellm():
    import litellm

    litellm.suppress_debug_info = True
    parameters = {"type": "object", "properties": {"word": {"enum": ["ember", "coal"]}}, "required": ["word"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "look_up", "parameters": parameters}}
    openai = dict(model="openai/any", api_base=V1)
    for form in (openai, dict(model="hosted_vllm/any", api_base=V1), dict(model="anthropic/any", api_base=URL)):
        asked = dict(form, api_key="none", messages=MESSAGES, temperature=0, max_tokens=100)
        whole = litellm.completion(**asked)
        assert whole.choices[0].message.content == TEXT and whole.choices[0].finish_reason == "stop", whole
        parts = list(litellm.completion(**asked, stream=True))
        assert "".join(part.choices[0].delta.content or "" for part in parts) == TEXT, parts
        with_tools = dict(asked, tools=[tool], tool_choice="required")
        for answer in (litellm.completion(**with_tools), litellm.stream_chunk_builder(list(litellm.completion(**with_tools, stream=True)))):
            call = answer.choices[0].message.tool_calls[0]
            assert answer.choices[0].finish_reason == "tool_calls" and call.function.name == "look_up", answer
            assert json.loads(call.function.arguments)["word"] in ("ember", "coal"), call
        history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
                   {"role": "tool", "tool_call_id": call.id, "content": "hot"}]
        assert litellm.completion(**{**asked, "messages": history}, tools=[tool]).usage.prompt_tokens > whole.usage.prompt_tokens
        fails(litellm.ContextWindowExceededError, litellm.completion, **{**asked, "messages": [{"role": "user", "content": TOO_LONG}]})
    asked = dict(openai, api_key="none", messages=MESSAGES, temperature=0, max_tokens=100)
    Entry.model_validate_json(litellm.completion(**asked, response_format=Entry).choices[0].message.content)
    likely = litellm.completion(**{**asked, "max_tokens": 2}, n=2, logprobs=True, top_logprobs=2)
    assert [len(choice.logprobs.content) for choice in likely.choices] == [2, 2], likely
    vectors = litellm.embedding(**openai, api_key="none", input=["ember", "coal"]).data
    assert all(abs(math.hypot(*vector["embedding"]) - 1) < 1e-4 for vector in vectors), vectors
    ranked = litellm.rerank(model="hosted_vllm/any", api_base=URL, api_key="none", query="ember", documents=["coal", "fish"])
    assert sorted(result["index"] for result in ranked.results) == [0, 1], ranked
    raw = litellm.text_completion(model="text-completion-openai/any", api_base=V1, api_key="none", prompt="An ember is", max_tokens=4, temperature=0)
    assert raw.choices[0].text == ask("/v1/completions", prompt="An ember is", max_tokens=4, temperature=0)["choices"][0]["text"]
    assert litellm.responses(**openai, api_key="none", input=QUESTION, temperature=0).output[0].content[0].text == TEXT


def instructor():
    import anthropic
    import instructor
    import openai

    chat = instructor.Mode
    for mode, limit in ((chat.TOOLS, "max_tokens"), (chat.JSON_SCHEMA, "max_tokens"), (chat.RESPONSES_TOOLS, "max_output_tokens")):
        client = instructor.from_openai(openai.OpenAI(base_url=V1, api_key="none", max_retries=0), mode=mode)
        asked = dict(model="any", messages=MESSAGES, temperature=0, max_retries=0, response_model=Entry, **{limit: 100})
        assert isinstance(client.chat.completions.create(**asked), Entry)
        parts = list(client.chat.completions.create_partial(**asked))
        Entry.model_validate(parts[-1].model_dump())
        if mode is chat.JSON_SCHEMA:  # Short arguments of a tool come at once.
            assert parts[0].is_hot is None and len({str(part) for part in parts}) > 2, parts
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0), mode=chat.ANTHROPIC_TOOLS)
    assert isinstance(client.messages.create(model="any", messages=MESSAGES, max_tokens=100, max_retries=0, response_model=Entry), Entry)


def langchain():
    from langchain_anthropic import ChatAnthropic
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

    tools = [tool(look_up)]
    common = dict(model="any", api_key="none", temperature=0, max_tokens=100)
    chats = [ChatOpenAI(base_url=V1, **common), ChatOpenAI(base_url=V1, use_responses_api=True, **common), ChatAnthropic(base_url=URL, **common)]
    for chat in chats:
        assert chat.invoke(QUESTION).text == TEXT
        assert "".join(part.text for part in chat.stream(QUESTION)) == TEXT
        assert [answer.text for answer in chat.batch([QUESTION] * 4)] == [TEXT] * 4
        calling = chat.bind_tools(tools, tool_choice="any")
        asked = calling.invoke(QUESTION)
        grown = functools.reduce(lambda whole, part: whole + part, calling.stream(QUESTION))
        for answer in (asked, grown):
            assert answer.tool_calls[0]["name"] == "look_up" and answer.tool_calls[0]["args"]["word"] in ("ember", "coal"), answer
        results = [tools[0].invoke(call) for call in asked.tool_calls]
        told = chat.bind_tools(tools).invoke([HumanMessage(QUESTION), asked, *results])
        assert told.usage_metadata["input_tokens"] > asked.usage_metadata["input_tokens"], told
        assert isinstance(chat.with_structured_output(Entry, method="function_calling").invoke(QUESTION), Entry)
        if chat is not chats[2]:  # Anthropic's client takes bounds out of a schema.
            assert isinstance(chat.with_structured_output(Entry, method="json_schema").invoke(QUESTION), Entry)
        fails(ContextOverflowError, chat.invoke, TOO_LONG)
    assert chats[2].get_num_tokens_from_messages([HumanMessage(QUESTION)]) == chats[2].invoke(QUESTION).usage_metadata["input_tokens"]
    raw = OpenAI(base_url=V1, **{**common, "max_tokens": 4})
    assert "".join(raw.stream("An ember is")) == raw.invoke("An ember is")
    # Without the check it sends texts, not tokens of another vocabulary.
    vectors = OpenAIEmbeddings(base_url=V1, api_key="none", model="any", check_embedding_ctx_length=False).embed_documents(["ember", "coal"])
    assert all(abs(math.hypot(*vector) - 1) < 1e-4 for vector in vectors), vectors


def pydantic_ai():
    import asyncio

    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def streamed(agent):
        async with agent.run_stream(QUESTION) as answer:
            return "".join([part async for part in answer.stream_text(delta=True)])

    settings = dict(temperature=0, max_tokens=100)
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind("any", provider=OpenAIProvider(base_url=V1, api_key="none"))
        agent = Agent(model, model_settings=settings)
        assert agent.run_sync(QUESTION).output == TEXT
        assert asyncio.run(streamed(agent)) == TEXT
        for output in (Entry, NativeOutput(Entry)):
            assert isinstance(Agent(model, model_settings=settings, output_type=output).run_sync(QUESTION).output, Entry)


def llama_index():
    from llama_index.core import PromptTemplate
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    common = dict(model="any", api_base=V1, api_key="none", temperature=0, context_window=2048)
    chat = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=100, **common)
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert chat.chat(messages).message.content == TEXT
    assert "".join(part.delta for part in chat.stream_chat(messages)) == TEXT
    assert isinstance(chat.structured_predict(Entry, PromptTemplate("{question}"), question=QUESTION), Entry)
    raw = OpenAILike(is_chat_model=False, max_tokens=4, **common)
    assert "".join(part.delta for part in raw.stream_complete("An ember is")) == raw.complete("An ember is").text


def huggingface_hub():
    from huggingface_hub import InferenceClient

    client = InferenceClient(base_url=V1, api_key="none")
    asked = dict(messages=MESSAGES, temperature=0.0, max_tokens=100)
    assert client.chat_completion(**asked).choices[0].message.content == TEXT
    assert "".join(part.choices[0].delta.content or "" for part in client.chat_completion(**asked, stream=True)) == TEXT
    schema = {"type": "json_schema", "json_schema": {"name": "entry", "schema": Entry.model_json_schema()}}
    Entry.model_validate_json(client.chat_completion(**asked, response_format=schema).choices[0].message.content)


def lm_eval():
    from lm_eval import simple_evaluate

    prompt = "An ember is"
    written = ask("/v1/completions", prompt=prompt, max_tokens=6, temperature=0, logprobs=1)["choices"][0]
    choices = [written["text"], " a piece of coal"]
    documents = pathlib.Path(SCRATCH.name) / "words.jsonl"
    documents.write_text(json.dumps({"prompt": prompt, "choices": choices, "question": QUESTION, "text": TEXT}) + "\n")
    common = dict(dataset_path="json", dataset_kwargs={"data_files": {"test": str(documents)}}, test_split="test")
    choosing = dict(common, task="choosing", output_type="multiple_choice", doc_to_text="{{prompt}}", doc_to_choice="{{choices}}", doc_to_target=0,
                    target_delimiter="", metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}])
    reading = dict(common, task="reading", output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}",
                   metric_list=[{"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}])
    until = dict(until=["hot"], max_gen_toks=100, do_sample=False, temperature=0)
    writing = dict(common, task="writing", output_type="generate_until", doc_to_text="{{question}}", doc_to_target="{{text.split('hot')[0]}}",
                   generation_kwargs=until, metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}])

    def run(tasks: list, model: str = "local-completions", path: str = "/v1/completions", **arguments) -> dict:
        with contextlib.redirect_stderr(io.StringIO()):  # bars
            told = simple_evaluate(model, dict(model="any", base_url=URL + path, **arguments), tasks=tasks, bootstrap_iters=0,
                                   apply_chat_template="chat" in model)
        return {name: (told["results"][name], told["samples"][name][0]["resps"]) for name in told["samples"]}

    def scores(prompt) -> list:
        """The log-probabilities of a prompt's tokens."""
        return ask("/v1/completions", prompt=prompt, max_tokens=0, echo=True, logprobs=1)["choices"][0]["logprobs"]["token_logprobs"]

    before = len(scores(prompt))
    info = json.load(urllib.request.urlopen(URL + "/tokenizer_info"))
    first, tokens = (ask("/tokenize", prompt=text, add_special_tokens=False)["tokens"] for text in (info["bos_token"], TEXT))
    assert len(first) == 1, first
    for arguments in ({}, {"tokenized_requests": False}, {"num_concurrent": 2, "batch_size": 2}):
        told = run([choosing, reading], **arguments)
        results, [[(greedy, is_greedy)], [(other, is_other)]] = told["choosing"]
        assert results["acc,none"] == 1 and is_greedy and not is_other, told
        # The tokens that the model wrote one by one, and those of a text that it read at once.
        assert abs(greedy - sum(written["logprobs"]["token_logprobs"])) < 1e-3, (greedy, written)
        assert abs(other - sum(scores(prompt + choices[1])[before:])) < 1e-3, other
        # A text behind which the model would end: lm-eval takes the end away, and no token of the text.
        [[whole]] = told["reading"][1]
        assert abs(whole - sum(scores(first + tokens)[1:])) < 1e-2, whole
    told = run([writing], "local-chat-completions", "/v1/chat/completions")
    assert told["writing"][0]["exact_match,none"] == 1, told


CHECKS = {
    litellm: ["litellm"],
    instructor: ["instructor"],
    langchain: ["langchain-openai", "langchain-anthropic"],
    pydantic_ai: ["pydantic-ai-slim"],
    llama_index: ["llama-index-llms-openai-like"],
    huggingface_hub: ["huggingface_hub"],
    lm_eval: ["lm-eval"],
}
for check, packages in CHECKS.items():
    try:
        versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    except importlib.metadata.PackageNotFoundError as error:
        print(f"skipped: {error.name} is not installed")
        continue
    check()
    print(f"{', '.join(versions)}: content", flush=True)
