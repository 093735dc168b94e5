//! `/v1/completions`, `/completion` and `/infill`.

use std::time::Duration;

use brasa::tokenizer::{AddSpecial, ParseSpecial};
use brasa::{Model, RequestOptions};
use serde_json::{Value, json};

use brasa_server::ServerOptions;

use super::client::{Running, models, options, server};
use super::device::Device;

#[test]
fn prompts_may_be_texts_ids_and_mixes() {
    let ids = server().post("/tokenize", &json!({"content": "ember is"})).json(200)["tokens"].clone();
    let mixed =
        json!(["ember", server().post("/tokenize", &json!({"content": " is"})).json(200)["tokens"][0]]);
    let body = json!({"prompt": ["ember is", ids, mixed], "max_tokens": 4, "temperature": 0, "n": 2});
    let answer = server().post("/v1/completions", &body).json(200);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], choices[0]["text"]);
        assert_eq!(choice["finish_reason"], "length");
    }
    assert_eq!(answer["usage"]["completion_tokens"], 24);
    let parts = server().post(
        "/v1/completions",
        &json!({"prompt": "ember is", "max_tokens": 4, "temperature": 0, "stream": true}),
    );
    let parts = parts.events();
    let text: String = parts.iter().filter_map(|part| part["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, choices[0]["text"].as_str().unwrap());
}

#[test]
fn an_echo_is_the_prompt_as_it_came() {
    for text in ["<|im_start|>user\nAn ember<|im_end|>\n", " two  blanks", "<|endoftext|>"] {
        let body = json!({"prompt": text, "echo": true, "logprobs": 0, "max_tokens": 0});
        assert_eq!(server().post("/v1/completions", &body).json(200)["choices"][0]["text"], text);
    }
}

#[test]
fn a_prompt_is_scored_as_the_library_scores_it() {
    let text = "An ember is a small piece of coal.";
    let body = json!({"prompt": text, "echo": true, "logprobs": 2, "max_tokens": 0});
    let answer = server().post("/v1/completions", &body).json(200);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], text);
    let numbers: Vec<Option<f64>> =
        choice["logprobs"]["token_logprobs"].as_array().unwrap().iter().map(Value::as_f64).collect();
    let path = models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let model = Model::load(path, &options().load).unwrap();
    let ids = model.tokenizer().encode(text, AddSpecial::AsModel, ParseSpecial::Yes).unwrap();
    assert_eq!(numbers.len(), ids.len());
    assert_eq!(numbers[0], None);
    let sum: f64 = numbers.iter().flatten().sum();
    let expected = model.score(&ids, &RequestOptions::DEFAULT, |_| {}).unwrap().mean_nll.unwrap();
    assert!((-sum / (ids.len() - 1) as f64 - expected).abs() < 1e-4, "{sum} {expected}");
    let offsets = choice["logprobs"]["text_offset"].as_array().unwrap();
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    for (token, offset) in tokens.iter().zip(offsets) {
        let rest: String = text.chars().skip(offset.as_u64().unwrap() as usize).collect();
        assert!(rest.starts_with(token.as_str().unwrap()), "{token} at {offset}");
    }
    assert_eq!(choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len(), 2);
    let body = json!({"prompt": text, "echo": true, "logprobs": 0, "max_tokens": 1, "temperature": 0});
    let longer = server().post("/v1/completions", &body).json(200);
    assert_eq!(longer["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), ids.len() + 1);
}

/// Programs that score texts, such as lm-eval, ask for one token behind a text and take the last one away. It has to be there
/// although the model ends the text at once.
#[test]
fn the_token_that_ends_a_text_has_a_probability() {
    let question = "<|im_start|>user\nWhat does \"ember\" mean?<|im_end|>\n<|im_start|>assistant\n";
    let body = json!({"prompt": question, "max_tokens": 100, "temperature": 0, "logprobs": 1});
    let whole = server().post("/v1/completions", &body).json(200);
    let (choice, usage) = (&whole["choices"][0], &whole["usage"]);
    assert_eq!(choice["finish_reason"], "stop");
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, usage["completion_tokens"].as_u64().unwrap() + 1, "{choice}");
    let text = question.to_owned() + choice["text"].as_str().unwrap();
    let scored = |more: Value| {
        let mut body = json!({"prompt": text, "temperature": 0, "logprobs": 1, "echo": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let ended = server().post("/v1/completions", &scored(json!({"max_tokens": 1}))).json(200);
    let (choice, usage) = (&ended["choices"][0], &ended["usage"]);
    assert_eq!((&choice["finish_reason"], &usage["completion_tokens"]), (&json!("stop"), &json!(0)));
    let lists = choice["logprobs"].as_object().unwrap();
    let prompt_tokens = usage["prompt_tokens"].as_u64().unwrap();
    for (name, list) in lists {
        assert_eq!(list.as_array().unwrap().len() as u64, prompt_tokens + 1, "{name}: {list}");
    }
    let echoed = choice["text"].as_str().unwrap().chars().count();
    let last = |name: &str| lists[name].as_array().unwrap().last().unwrap();
    assert_eq!((last("tokens"), last("text_offset")), (&json!("<|im_end|>"), &json!(echoed)));
    assert_eq!(last("top_logprobs")["<|im_end|>"], *last("token_logprobs"));
    assert!(last("token_logprobs").as_f64().unwrap() > -0.7);
    // What comes before is the score of the text by itself.
    let alone = server().post("/v1/completions", &scored(json!({"max_tokens": 0}))).json(200);
    let alone = &alone["choices"][0]["logprobs"]["token_logprobs"];
    assert_eq!(
        &lists["token_logprobs"].as_array().unwrap()[..prompt_tokens as usize],
        alone.as_array().unwrap()
    );
    let parts = server().post("/v1/completions", &scored(json!({"max_tokens": 1, "stream": true}))).events();
    let streamed = parts.iter().filter_map(|part| part["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(streamed.flatten().cloned().collect::<Value>(), lists["tokens"]);
}

#[test]
fn llama_cpps_form_tells_how_an_answer_ended() {
    let body = json!({"prompt": "An ember is", "n_predict": 5, "temperature": 0, "n_probs": 2, "return_tokens": true});
    let answer = server().post("/completion", &body).json(200);
    assert_eq!((&answer["stop_type"], &answer["tokens_predicted"]), (&json!("limit"), &json!(5)));
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(answer["completion_probabilities"].as_array().unwrap().len(), 5);
    let text = answer["content"].as_str().unwrap();
    let word = text.split(' ').rfind(|word| !word.is_empty()).unwrap();
    let mut body = body;
    body.as_object_mut().unwrap().extend([("stop".into(), json!([word])), ("stream".into(), json!(true))]);
    let device = Device::new();
    device.pace(Duration::from_millis(50));
    let slow = Running::start(device.options());
    let stopped = slow.post("/completion", &body);
    slow.stop();
    let parts: Vec<Value> = stopped
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let last = parts.last().unwrap();
    assert_eq!((&last["stop_type"], &last["stopping_word"]), (&json!("word"), &json!(word)));
    let content: String = parts.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!(content, text.split(word).next().unwrap());
    let counts: Vec<u64> = parts.iter().map(|part| part["tokens_predicted"].as_u64().unwrap()).collect();
    assert!(counts[0] >= 1 && counts.is_sorted() && counts.len() > 2, "{counts:?}");
    // How many tokens come together depends on the machine: a part counts all up to it.
    let come: Vec<u64> = parts
        .iter()
        .scan(0, |come, part| {
            *come += part["tokens"].as_array().unwrap().len() as u64;
            Some(*come)
        })
        .collect();
    assert_eq!((&counts, counts.last()), (&come, Some(&5)), "{parts:?}");
    assert!(parts.iter().all(|part| part["tokens_evaluated"] == answer["tokens_evaluated"]));
}

#[test]
fn tokens_and_text_are_inverse() {
    let text = "Grüße, 世界!";
    let answer = server().post("/tokenize", &json!({"content": text, "with_pieces": true})).json(200);
    let tokens = answer["tokens"].as_array().unwrap();
    let ids: Vec<Value> = tokens.iter().map(|token| token["id"].clone()).collect();
    assert!(tokens.iter().all(|token| token["piece"].is_string() || token["piece"].is_array()));
    assert_eq!(server().post("/detokenize", &json!({"tokens": ids})).json(200)["content"], text);
    let akunu = server().post("/v1/tokenize", &json!({"text": text})).json(200);
    assert_eq!(akunu["tokens"], json!(ids));
    assert_eq!(akunu["count"], ids.len());
}

/// A prompt that is scored has the time of its request and no more.
#[test]
fn echoed_prompts_are_scored_within_the_requests_time() {
    let server = Running::start(ServerOptions { request_timeout: Duration::ZERO, ..options() });
    let body = json!({"prompt": "An ember is", "max_tokens": 0, "echo": true, "logprobs": 0});
    assert_eq!(server.post("/v1/completions", &body).error(504).2, "timeout");
    server.stop();
}
