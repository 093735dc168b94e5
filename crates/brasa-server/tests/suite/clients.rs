//! Clients of every kind: whole responses, Anthropic's lists and errors, and the paths of other servers.

use serde_json::{Value, json};

use super::client::Running;
use super::client::{Answer, MODEL, models, options, server};
use std::collections::BTreeSet;
use std::path::Path;

use brasa_server::ServerOptions;

/// The keys of a response, by the specification.
const RESPONSE: &[&str] = &[
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
];

fn missing<'a>(value: &Value, keys: &[&'a str]) -> Vec<&'a str> {
    keys.iter().copied().filter(|key| value.get(key).is_none()).collect()
}

#[test]
fn a_response_has_every_key() {
    let body = json!({"input": "ember", "temperature": 0, "presence_penalty": 0.5, "safety_identifier": "s", "max_tool_calls": 3,
        "prompt_cache_key": "k", "tool_choice": "none", "reasoning": {"effort": "none"}, "truncation": "auto",
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]});
    let answer = server().post("/v1/responses", &body).json(200);
    assert_eq!(missing(&answer, RESPONSE), Vec::<&str>::new(), "{answer}");
    assert_eq!((&answer["status"], &answer["max_output_tokens"]), (&json!("completed"), &Value::Null));
    assert!(answer["completed_at"].as_u64() >= answer["created_at"].as_u64(), "{answer}");
    assert_eq!(
        missing(&answer["tools"][0], &["type", "name", "description", "parameters", "strict"]),
        Vec::<&str>::new()
    );
    assert_eq!(answer["reasoning"], json!({"effort": "none", "summary": null}));
    assert_eq!((&answer["safety_identifier"], &answer["prompt_cache_key"]), (&json!("s"), &json!("k")));
    assert_eq!((&answer["max_tool_calls"], &answer["truncation"]), (&json!(3), &json!("auto")));
    assert_eq!((&answer["presence_penalty"], &answer["top_logprobs"]), (&json!(0.5), &json!(0)));
    let input = &answer["usage"]["input_tokens_details"];
    assert_eq!(missing(input, &["cached_tokens", "cache_write_tokens"]), Vec::<&str>::new());
    assert!(
        answer["output"].as_array().unwrap().iter().all(|item| item["status"] == "completed"),
        "{answer}"
    );
}

#[test]
fn an_incomplete_response_ends_within_its_last_item() {
    let mut body = json!({"input": "ember", "temperature": 0, "max_output_tokens": 3});
    let whole = server().post("/v1/responses", &body).json(200);
    assert_eq!((&whole["status"], &whole["completed_at"]), (&json!("incomplete"), &Value::Null));
    let items = whole["output"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{whole}");
    assert_eq!((&items[0]["type"], &items[0]["status"]), (&json!("message"), &json!("incomplete")));
    body["stream"] = true.into();
    let events = server().post("/v1/responses", &body).named_events();
    let (name, last) = events.last().unwrap();
    assert_eq!(name, "response.incomplete");
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    assert_eq!(last["response"]["output"].as_array().unwrap().len(), 1);
    assert_eq!(missing(&events[0].1["response"], RESPONSE), Vec::<&str>::new());
}

/// A required call that is cut short is told to be so in every form, and its arguments hold nothing that the model did not write.
#[test]
fn a_required_call_that_is_cut_short_is_no_whole_one() {
    let parameters = json!({"type": "object", "properties": {"words": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
        "required": ["words"]});
    let user = json!([{"role": "user", "content": "ember"}]);
    for tokens in [1, 4, 9, 16, 25] {
        let chat = json!({"messages": user, "tool_choice": "required", "max_tokens": tokens, "temperature": 0,
            "tools": [{"type": "function", "function": {"name": "list_words", "parameters": parameters}}]});
        let answer = server().post("/v1/chat/completions", &chat).json(200);
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{tokens}: {answer}");
        let responses = json!({"input": "ember", "tool_choice": "required", "max_output_tokens": tokens, "temperature": 0,
            "tools": [{"type": "function", "name": "list_words", "parameters": parameters}]});
        let answer = server().post("/v1/responses", &responses).json(200);
        assert_eq!(answer["status"], "incomplete", "{tokens}: {answer}");
        let messages = json!({"messages": user, "tool_choice": {"type": "any"}, "max_tokens": tokens, "temperature": 0,
            "tools": [{"name": "list_words", "input_schema": parameters}]});
        let answer = server().post("/v1/messages", &messages).json(200);
        assert_eq!(answer["stop_reason"], "max_tokens", "{tokens}: {answer}");
        for block in answer["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use")
        {
            assert_eq!(block["input"], json!({}), "{tokens}");
        }
    }
}

fn anthropic(path: &str, method: &str) -> Answer {
    server().send(method, path, &[("anthropic-version", "2023-06-01")], b"")
}

#[test]
fn clients_of_anthropic_get_lists_and_errors_in_its_form() {
    let list = anthropic("/v1/models?limit=1000", "GET").json(200);
    assert_eq!(
        (&list["first_id"], &list["last_id"], &list["has_more"]),
        (&json!(MODEL), &json!(MODEL), &json!(false))
    );
    let model = &list["data"][0];
    assert_eq!(
        (&model["type"], &model["id"], &model["display_name"]),
        (&json!("model"), &json!(MODEL), &json!(MODEL))
    );
    let time = model["created_at"].as_str().unwrap();
    assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    assert_eq!(anthropic(&format!("/v1/models/{MODEL}"), "GET").json(200), *model);
    for (path, method, status, kind) in [
        ("/v1/nothing", "GET", 404, "not_found_error"),
        ("/v1/messages/batches", "GET", 404, "not_found_error"),
        ("/v1/chat/completions", "GET", 405, "invalid_request_error"),
        ("/v1/models?limit=0", "GET", 400, "invalid_request_error"),
        ("/v1/models?after_id=nothing", "GET", 400, "invalid_request_error"),
        ("/v1/completions", "POST", 400, "invalid_request_error"),
    ] {
        let error = anthropic(path, method).json(status);
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!(kind)), "{path}");
        assert!(error["request_id"].is_string());
    }
    // Others get OpenAI's.
    assert_eq!(server().get("/v1/models").json(200)["object"], "list");
    assert!(server().get("/v1/nothing").json(404)["type"].is_null());
}

#[test]
fn a_list_of_models_comes_in_pages() {
    let server =
        Running::start(ServerOptions { models: Vec::new(), models_dir: Some(models()), ..options() });
    let page = |query: &str| {
        let path = format!("/v1/models?{query}");
        server.send("GET", &path, &[("anthropic-version", "2023-06-01")], b"").json(200)
    };
    let ids = |page: &Value| -> Vec<String> {
        page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = ids(&page("limit=1000"));
    assert!(all.len() > 3);
    let first = page("limit=2");
    assert_eq!((ids(&first), &first["has_more"]), (all[..2].to_vec(), &json!(true)));
    let second = page(&format!("limit=2&after_id={}", first["last_id"].as_str().unwrap()));
    assert_eq!(ids(&second), all[2..4]);
    let back = page(&format!("limit=1&before_id={}", all[2]));
    assert_eq!((ids(&back), &back["has_more"]), (all[1..2].to_vec(), &json!(true)));
    server.stop();
}

#[test]
fn documents_of_text_are_read_and_others_are_refused_by_name() {
    let count = |block: Value| {
        let body = json!({"messages": [{"role": "user", "content": [block, {"type": "text", "text": "Sum it up."}]}]});
        server().post("/v1/messages/count_tokens", &body)
    };
    let tokens = |block: Value| count(block).json(200)["input_tokens"].as_u64().unwrap();
    let document =
        |source: Value| json!({"type": "document", "title": "Coal", "context": "a page", "source": source});
    let text = "An ember is a small piece of coal.";
    let plain = tokens(json!({"type": "text", "text": format!("Coal\n\na page\n\n{text}")}));
    assert_eq!(tokens(document(json!({"type": "text", "media_type": "text/plain", "data": text}))), plain);
    assert_eq!(
        tokens(document(json!({"type": "content", "content": [{"type": "text", "text": text}]}))),
        plain
    );
    let result = json!({"type": "search_result", "title": "Coal", "source": "a page", "content": [{"type": "text", "text": text}]});
    assert_eq!(tokens(result.clone()), plain);
    for (block, param) in [
        (
            document(json!({"type": "base64", "media_type": "application/pdf", "data": "eA=="})),
            "messages[0].content[0].source.type",
        ),
        (
            document(json!({"type": "url", "url": "http://127.0.0.1/x.pdf"})),
            "messages[0].content[0].source.type",
        ),
        (
            document(json!({"type": "text", "media_type": "text/html", "data": "x"})),
            "messages[0].content[0].source.media_type",
        ),
        (document(json!({"type": "text", "media_type": "text/plain"})), "messages[0].content[0].source.data"),
        (
            json!({"type": "document", "citations": {"enabled": true}, "source": {"type": "text", "data": "x"}}),
            "messages[0].content[0].citations",
        ),
        (
            json!({"type": "image", "source": {"type": "base64", "data": "eA=="}}),
            "messages[0].content[0].type",
        ),
    ] {
        let error = count(block).json(400);
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    // In the result of a tool too.
    let result = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [result, {"type": "text", "text": "y"}]}]}]});
    server().post("/v1/messages/count_tokens", &result).json(200);
}

/// Every path of llama-server and of vLLM that says something of a text here, as clients write them.
#[test]
fn paths_of_other_servers_are_there() {
    let chat = json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1});
    let input = json!({"input": "ember", "max_output_tokens": 1});
    let pairs = json!({"text_1": "What is an ember?", "text_2": ["A piece of coal.", "Seven."]});
    let ranked = json!({"query": "What is an ember?", "documents": ["A piece of coal.", "Seven."]});
    for (path, body) in [
        ("/chat/completions", &chat),
        ("/chat/completions/input_tokens", &chat),
        ("/v1/chat/completions/input_tokens", &chat),
        ("/v1/chat/completions/", &chat),
        ("//v1//chat/completions", &chat),
        ("/responses", &input),
        ("/responses/input_tokens", &input),
        ("/v1/responses/", &input),
        ("/score", &pairs),
        ("/v1/score", &pairs),
        ("/v2/rerank", &ranked),
        ("/tokenize", &chat),
        ("/v1/detokenize", &json!({"tokens": [1]})),
    ] {
        let answer = server().post(path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    for path in [
        "/version",
        "/ping",
        "/load",
        "/health/",
        "/v1/models/",
        "//v1/models",
        "/tokenizer_info",
        "/props/?model=x",
    ] {
        assert_eq!(server().get(path).status, 200, "{path}");
        let head = server().send("HEAD", path, &[], b"");
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
    }
    assert_eq!(server().send("POST", "/ping", &[], b"").status, 200);
    assert_eq!(server().get("/version").json(200)["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(server().post("/v1/responses/compact", &input).error(501).2, "not_supported");
    // A form of sound, without any sound.
    assert_eq!(server().post("/audio/transcriptions", &json!({})).error(400).2, "invalid_form");
}

#[test]
fn conversations_and_prompts_are_tokenized_in_vllms_form() {
    let messages = json!([{"role": "user", "content": "ember"}]);
    let tokens = |body: Value| server().post("/tokenize", &body).json(200);
    let chat = tokens(json!({"messages": messages, "return_token_strs": true}));
    let prompt = server().post("/apply-template", &json!({"messages": messages})).json(200)["prompt"].clone();
    assert_eq!(chat["tokens"], tokens(json!({"content": prompt}))["tokens"]);
    let texts: String = chat["token_strs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!((json!(texts), &chat["count"]), (prompt, &json!(chat["tokens"].as_array().unwrap().len())));
    assert_eq!(chat["max_model_len"], 512);
    let with = tokens(json!({"prompt": "ember"}));
    assert_eq!(with["tokens"], tokens(json!({"content": "ember", "add_special": true}))["tokens"]);
    let without = tokens(json!({"prompt": "ember", "add_special_tokens": false}));
    assert_eq!(without["tokens"], tokens(json!({"content": "ember"}))["tokens"]);
}

#[test]
fn scores_are_those_of_rerankings() {
    let (query, documents) = ("What is an ember?", ["A piece of coal.", "Seven."]);
    let ranked = server().post("/rerank", &json!({"query": query, "documents": documents})).json(200);
    let of = |index: usize| {
        let found = ranked["results"].as_array().unwrap().iter().find(|result| result["index"] == index);
        found.unwrap()["relevance_score"].as_f64().unwrap()
    };
    for body in [
        json!({"text_1": query, "text_2": documents}),
        json!({"text_1": [query, query], "text_2": documents}),
        json!({"queries": query, "documents": documents}),
    ] {
        let scored = server().post("/v1/score", &body).json(200);
        for index in 0..2 {
            let score = scored["data"][index]["score"].as_f64().unwrap();
            assert!((score - of(index)).abs() < 1e-4, "{scored} {ranked}");
        }
        assert!(scored["usage"]["prompt_tokens"].as_u64() > Some(0));
    }
    let unequal = json!({"text_1": ["a", "b", "c"], "text_2": documents});
    assert_eq!(server().post("/score", &unequal).error(400).1.as_deref(), Some("text_1"));
    assert_eq!(server().post("/score", &json!({"text_1": "a"})).error(400).1.as_deref(), Some("text_2"));
}

#[test]
fn probabilities_behind_the_filters_are_told_in_llama_cpps_form() {
    let body = json!({"prompt": "An ember is", "n_predict": 3, "temperature": 1, "top_k": 2, "top_p": 1, "min_p": 0, "seed": 5,
        "n_probs": 4, "post_sampling_probs": true});
    let answer = server().post("/completion", &body).json(200);
    for token in answer["completion_probabilities"].as_array().unwrap() {
        let top = token["top_probs"].as_array().unwrap();
        let probs: Vec<f64> = top.iter().map(|of| of["prob"].as_f64().unwrap()).collect();
        assert!(probs.len() <= 2 && (probs.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{token}");
        assert!(top.iter().any(|of| of["id"] == token["id"] && of["prob"] == token["prob"]), "{token}");
        assert!(token["logprob"].is_null() && token["top_logprobs"].is_null());
    }
}

#[test]
fn samplers_may_be_letters_and_leave_penalties_out() {
    let text = |samplers: Value| {
        let body = json!({"prompt": "An ember is", "n_predict": 12, "temperature": 1, "seed": 3, "top_k": 5, "repeat_penalty": 1.8,
            "samplers": samplers});
        server().post("/completion", &body)
    };
    let content = |answer: Answer| answer.json(200)["content"].clone();
    let listed = content(text(json!(["penalties", "top_k", "top_p", "min_p", "temperature"])));
    assert_eq!(content(text(json!("edkpmt"))), listed);
    let without = content(text(json!(["top_k", "top_p", "min_p", "temperature"])));
    assert_ne!(without, listed);
    // In any order: behind the filter, penalties leave the likeliest token alone.
    let likeliest = |samplers: Value| {
        let body = json!({"prompt": "An ember is", "n_predict": 24, "top_k": 1, "repeat_penalty": 1.8, "samplers": samplers});
        content(server().post("/completion", &body))
    };
    let behind = likeliest(json!(["top_k", "penalties"]));
    assert_eq!(likeliest(json!("ke")), behind);
    assert_eq!(likeliest(json!("k")), behind);
    assert_ne!(likeliest(json!("ek")), behind);
    for (wrong, named) in [
        (json!("kz"), "'z' is the letter of no sampler"),
        (json!(["top_k", "top-K"]), "the sampler `top_k` is named twice"),
        (
            json!(["top_k", "mirostat"]),
            "the sampler `mirostat` is not supported: its threshold depends on all tokens",
        ),
        (json!(7), "expected a list of names, or letters in a text"),
    ] {
        let answer = text(wrong.clone());
        assert_eq!(answer.error(400).1.as_deref(), Some("samplers"), "{wrong}");
        let body = answer.json(400);
        assert!(body["error"]["message"].as_str().unwrap().contains(named), "{body}");
    }
}

/// The texts that stand behind `start` in the sources of the server.
fn in_sources(folder: &Path, start: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            in_sources(&entry, start, found);
        } else {
            let text = std::fs::read_to_string(&entry).unwrap();
            found.extend(
                text.split(start).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())),
            );
        }
    }
}

#[test]
fn every_code_of_an_error_is_documented() {
    let mut codes = BTreeSet::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for start in ["code: \"", "not_found(\"", "unavailable(\"", "forbidden(\""] {
        in_sources(&sources, start, &mut codes);
    }
    assert!(codes.len() > 20, "{codes:?}");
    let text = include_str!("../../../../docs/server.md");
    codes.retain(|code| !text.contains(&format!("`{code}`")));
    assert_eq!(codes, BTreeSet::new());
}
