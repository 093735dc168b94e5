//! Speech behind the server's routes: forms as clients send them, answers in all forms, and clients that mean harm.

use std::sync::LazyLock;
use std::time::Duration;

use brasa_server::{ModelData, ModelSource, ServerOptions};
use serde_json::{Value, json};

use super::client::{Answer, MODEL, Running, models, options, until};

const TRANSCRIBE: &str = "/v1/audio/transcriptions";
const TRANSLATE: &str = "/v1/audio/translations";
const BOUNDARY: &str = "----of-the-form";
/// Most bytes of a file that the server of these tests takes.
const MOST_BYTES: usize = 600_000;
/// The text of `held-4.wav`.
const LION: &str = "Where is the clever lion?";

/// A server with a language model in front and a model of speech behind it.
fn server() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| Running::start(with_speech(options())));
    &SERVER
}

fn with_speech(mut options: ServerOptions) -> ServerOptions {
    let data = ModelData::Path(models().join("tiny-whisper"));
    options.models.push(ModelSource { id: "tiny-whisper".into(), data });
    ServerOptions { max_audio_bytes: MOST_BYTES, max_audio_duration: Duration::from_secs(20), ..options }
}

fn wav(number: u32) -> Vec<u8> {
    std::fs::read(models().join(format!("tiny-whisper/held-{number}.wav"))).unwrap()
}

/// The parts of a form.
struct Form(Vec<u8>);

impl Form {
    fn new(file: &[u8]) -> Self {
        Self(Vec::new()).file("speech.wav", file)
    }

    fn file(mut self, name: &str, bytes: &[u8]) -> Self {
        let head = format!(
            "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\ncontent-type: application/octet-stream\r\n\r\n"
        );
        self.0.extend(head.bytes().chain(bytes.iter().copied()).chain(*b"\r\n"));
        self
    }

    fn field(mut self, name: &str, value: &str) -> Self {
        let part =
            format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        self.0.extend(part.bytes());
        self
    }

    fn bytes(mut self) -> Vec<u8> {
        self.0.extend(format!("--{BOUNDARY}--\r\n").bytes());
        self.0
    }

    fn send(self, path: &str) -> Answer {
        server().send("POST", path, &[("content-type", &content_type())], &self.bytes())
    }
}

fn content_type() -> String {
    format!("multipart/form-data; boundary={BOUNDARY}")
}

/// A form with a short sound and these fields beside the model, greedy for the sake of time.
fn form(fields: &[(&str, &str)]) -> Form {
    let form = Form::new(&wav(4)).field("model", "tiny-whisper").field("beam_size", "1");
    fields.iter().fold(form, |form, (name, value)| form.field(name, value))
}

#[test]
fn every_form_of_answer() {
    let json = form(&[]).send(TRANSCRIBE).json(200);
    assert_eq!(json["text"], LION);
    assert_eq!(json["usage"]["type"], "duration");
    let seconds = json["usage"]["seconds"].as_f64().unwrap();
    assert!((seconds - 1.85).abs() < 0.1, "{seconds}");

    let text = form(&[("response_format", "text")]).send(TRANSCRIBE);
    assert!(text.head.contains("content-type: text/plain"), "{}", text.head);
    assert_eq!(text.body, format!("{LION}\n"));
    let srt = form(&[("response_format", "srt")]).send(TRANSCRIBE).body;
    assert_eq!(srt, format!("1\n00:00:00,000 --> 00:00:01,460\n{LION}\n\n"));
    let vtt = form(&[("response_format", "vtt")]).send(TRANSCRIBE);
    assert!(vtt.head.contains("content-type: text/vtt"), "{}", vtt.head);
    assert_eq!(vtt.body, format!("WEBVTT\n\n00:00.000 --> 00:01.460\n{LION}\n\n"));

    let verbose = form(&[("response_format", "verbose_json"), ("language", "en")]).send(TRANSCRIBE).json(200);
    assert_eq!((&verbose["task"], &verbose["language"]), (&json!("transcribe"), &json!("english")));
    assert_eq!(verbose["segments"][0]["text"], format!(" {LION}"));
    assert!(verbose.get("words").is_none());
    let took = |part: &str| verbose["timings"][part].as_f64().unwrap();
    assert!(took("encode_ms") > 0.0 && took("decode_ms") > 0.0 && took("total_ms") > took("encode_ms"));
    assert!(took("real_time_factor") > 0.0 && took("align_ms") == 0.0, "{verbose}");
    let words = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let words = form(&words).send(TRANSCRIBE).json(200);
    assert_eq!(words["words"].as_array().unwrap().len(), 5);
    assert_eq!(words["words"][4]["word"], "lion?");
    assert!(words["words"][4]["probability"].as_f64().unwrap() > 0.3, "{words}");
    assert!(words.get("segments").is_none());
    let both = [("timestamp_granularities[]", "segment"), ("timestamp_granularities[]", "word")];
    let both = form(&both).field("response_format", "verbose_json").send(TRANSCRIBE).json(200);
    assert!(both["words"].is_array() && both["segments"].is_array());

    let translated = form(&[("response_format", "verbose_json")]).send(TRANSLATE).json(200);
    assert_eq!(translated["task"], "translate");
}

/// Four seconds of a hum, which is no voice, and then `held-4.wav`.
fn behind_a_hum() -> Vec<u8> {
    let mut sound = wav(4);
    let speech = sound.split_off(44);
    let hum = (0..64_000).map(|n: u32| (6000.0 * (f64::from(n) * 0.03).sin()) as i16);
    sound.extend(hum.flat_map(i16::to_le_bytes).chain(speech));
    let (riff, data) = (sound.len() as u32 - 8, sound.len() as u32 - 44);
    sound[4..8].copy_from_slice(&riff.to_le_bytes());
    sound[40..44].copy_from_slice(&data.to_le_bytes());
    sound
}

#[test]
fn pauses_are_left_out() {
    for fields in [
        &[("vad", "model")][..],
        &[("chunking_strategy", r#"{"type": "server_vad", "threshold": 0.4, "prefix_padding_ms": 250}"#)],
        &[("chunking_strategy[type]", "server_vad"), ("chunking_strategy[silence_duration_ms]", "400")],
    ] {
        let form =
            Form::new(&behind_a_hum()).field("beam_size", "1").field("response_format", "verbose_json");
        let form = fields.iter().fold(form, |form, (name, value)| form.field(name, value));
        let answer = form.send(TRANSCRIBE).json(200);
        assert_eq!(answer["text"], LION, "{fields:?}");
        let start = answer["segments"][0]["start"].as_f64().unwrap();
        assert!(
            (3.8..4.6).contains(&start) && answer["segments"][0]["seek"].as_u64() > Some(380),
            "{answer}"
        );
    }
    let whole = Form::new(&behind_a_hum()).field("vad", "off").field("response_format", "verbose_json");
    assert_eq!(whole.send(TRANSCRIBE).json(200)["segments"][0]["seek"], 0);
}

#[test]
fn fields_reach_the_decoder() {
    let biased = form(&[("hotwords", "tiger")]).field("prompt", "At the zoo.").send(TRANSCRIBE);
    assert!(biased.json(200)["text"].is_string());
    let animal = r#"root ::= "Where is the clever " ("tiger" | "bear") "?""#;
    let held = form(&[("grammar", animal)]).send(TRANSCRIBE).json(200)["text"].clone();
    assert!(held == "Where is the clever tiger?" || held == "Where is the clever bear?", "{held}");
    let wrong = form(&[("grammar", "root ::= (")]).send(TRANSCRIBE).json(400);
    assert!(wrong["error"]["message"].as_str().unwrap().contains("GBNF"), "{wrong}");
    let hot = |seed| {
        let fields =
            [("temperature", "1.0"), ("best_of", "1"), ("seed", seed), ("response_format", "verbose_json")];
        form(&fields).send(TRANSCRIBE).json(200)["segments"].clone()
    };
    assert_eq!(hot("3"), hot("3"));
    // Any name stands for the only model of speech, and an empty field for none.
    let other = Form::new(&wav(4)).field("model", "whisper-1").field("language", "").field("beam_size", "1");
    assert_eq!(other.send(TRANSCRIBE).json(200)["text"], LION);
    assert_eq!(Form::new(&wav(4)).field("beam_size", "1").send(TRANSCRIBE).json(200)["text"], LION);
    // Fields that nobody knows are counted and logged.
    form(&[("enable_karaoke", "1"), ("user", "u")]).send(TRANSCRIBE).json(200);
    server().logged(|line| line["unknown_field"] == "enable_karaoke");
}

#[test]
fn a_stream_has_the_text_in_parts() {
    let parts = Form::new(&wav(5)).field("stream", "true").field("beam_size", "1");
    let events = parts.send(TRANSCRIBE).events();
    let (last, deltas) = events.split_last().unwrap();
    assert!(deltas.iter().all(|event| event["type"] == "transcript.text.delta"));
    assert_eq!(deltas.len(), 3, "a part for each segment");
    let text: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!((&last["type"], &last["text"]), (&json!("transcript.text.done"), &json!(text)));
    assert!(text.starts_with("The hungry fox") && text.ends_with("eighth of April."), "{text}");
    // A stream counts in tokens.
    let usage = &last["usage"];
    let [read, heard, written, all] =
        ["/input_tokens", "/input_token_details/audio_tokens", "/output_tokens", "/total_tokens"]
            .map(|path| usage.pointer(path).and_then(Value::as_u64).unwrap());
    assert_eq!((&usage["type"], heard, all), (&json!("tokens"), read, read + written));
    assert!(heard > 0 && written > 8, "{usage}");
    // What cannot be read is refused with a status, not inside a stream.
    let broken = Form::new(b"no sound").field("stream", "true").send(TRANSCRIBE);
    assert_eq!(broken.error(400).2, "invalid_audio");
}

/// Headers that lie a little are read, with a warning in the answer and in the log.
#[test]
fn doubtful_headers_are_told() {
    let mut unfinished = wav(4);
    unfinished[40..44].fill(0);
    let ask = |stream: &str| Form::new(&unfinished).field("beam_size", "1").field("stream", stream);
    let whole = ask("false").send(TRANSCRIBE).json(200);
    assert_eq!(whole["text"], LION);
    let warned = |answer: &Value| answer["warnings"][0].as_str().unwrap().contains("gives the length 0");
    assert!(warned(&whole), "{whole}");
    let events = ask("true").send(TRANSCRIBE).events();
    assert!(warned(events.last().unwrap()), "{events:?}");
    server().logged(|line| line["warnings"][0].is_string());
    assert!(form(&[]).send(TRANSCRIBE).json(200).get("warnings").is_none());
}

/// Tokens, whole and streamed, spell the text, and their mean is about that of the segments, which counts ends and timestamps too.
#[test]
fn tokens_have_log_probabilities_if_they_are_asked_for() {
    let ask = |fields: &[(&str, &str)]| {
        let form = Form::new(&wav(5)).field("beam_size", "1").field("include[]", "logprobs");
        fields.iter().fold(form, |form, (name, value)| form.field(name, value)).send(TRANSCRIBE)
    };
    let spelled = |logprobs: &Value| {
        let tokens = logprobs.as_array().unwrap().iter();
        let text = |token: &Value| {
            let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
            assert!(token["logprob"].as_f64().unwrap() <= 0.0, "{token}");
            assert_eq!(token["token"], String::from_utf8_lossy(&bytes).as_ref());
            bytes
        };
        String::from_utf8(tokens.flat_map(text).collect()).unwrap()
    };
    let whole = ask(&[]).json(200);
    assert_eq!(spelled(&whole["logprobs"]).trim(), whole["text"]);
    let events = ask(&[("stream", "true")]).events();
    let (last, deltas) = events.split_last().unwrap();
    assert_eq!(last["logprobs"], whole["logprobs"]);
    let parts: Vec<Value> =
        deltas.iter().flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
    assert_eq!(Value::from(parts), whole["logprobs"]);
    for event in deltas {
        assert_eq!(spelled(&event["logprobs"]).trim(), event["delta"].as_str().unwrap().trim());
    }
    let plain = Form::new(&wav(5)).field("beam_size", "1").send(TRANSCRIBE).json(200);
    assert_eq!((plain.get("logprobs"), &plain["text"]), (None, &whole["text"]));
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    for (field, value, code) in [
        ("language", "klingon", "invalid_value"),
        ("response_format", "docx", "invalid_value"),
        ("response_format", "diarized_json", "unsupported_field"),
        ("temperature", "1.5", "invalid_value"),
        ("temperature", "warm", "invalid_value"),
        ("stream", "perhaps", "invalid_value"),
        ("include[]", "words", "invalid_value"),
        ("max_initial_timestamp", "31", "invalid_value"),
        ("max_initial_timestamp", "soon", "invalid_value"),
        ("timestamp_granularities[]", "word", "unsupported_field"),
        ("timestamp_granularities[]", "letter", "invalid_value"),
        ("chunking_strategy", "loud", "invalid_value"),
        ("chunking_strategy", "{\"type\": \"client_vad\"}", "invalid_value"),
        ("chunking_strategy", "{\"threshold\": 0.5}", "invalid_value"),
        ("chunking_strategy", "{\"type\": \"server_vad\", \"threshold\": 2}", "invalid_value"),
        ("chunking_strategy", "{\"type\": \"server_vad\", \"eagerness\": 1}", "invalid_value"),
        ("vad", "loud", "invalid_value"),
        ("known_speaker_names[]", "Emma", "unsupported_field"),
        ("url", "http://example.com/speech.wav", "unsupported_field"),
        ("best_of", "33", "invalid_value"),
        ("seed", "soon", "invalid_value"),
    ] {
        let form = Form::new(&wav(4)).field("model", "tiny-whisper").field(field, value);
        let (_, param, found) = form.send(TRANSCRIBE).error(400);
        assert_eq!((param.as_deref(), found.as_str()), (Some(field.trim_end_matches("[]")), code), "{field}");
    }
    let text = form(&[("include[]", "logprobs"), ("response_format", "verbose_json")]).send(TRANSCRIBE);
    assert_eq!(text.error(400).1.as_deref(), Some("include"));
    let stream = form(&[("stream", "true"), ("response_format", "srt")]).send(TRANSCRIBE);
    assert_eq!(stream.error(400).1.as_deref(), Some("stream"));
    let twice = form(&[("language", "en"), ("language", "de")]).send(TRANSCRIBE);
    assert_eq!(twice.error(400).1.as_deref(), Some("language"));
    let none = Form(Vec::new()).field("model", "tiny-whisper").send(TRANSCRIBE);
    assert_eq!(none.error(400).2, "missing_field");

    // A model of one kind does not do the work of another.
    let text = Form::new(&wav(4)).field("model", MODEL).send(TRANSCRIBE);
    assert!(text.body.contains("is a language model, which cannot transcribe sound"), "{}", text.body);
    assert_eq!(text.error(400).2, "wrong_model_kind");
    let message = json!([{"role": "user", "content": "Hello"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"model": "tiny-whisper", "messages": message})),
        ("/v1/completions", json!({"model": "tiny-whisper", "prompt": "Hello"})),
        ("/v1/embeddings", json!({"model": "tiny-whisper", "input": "Hello"})),
        ("/v1/messages", json!({"model": "tiny-whisper", "messages": message, "max_tokens": 4})),
    ] {
        let answer = server().post(path, &body);
        assert!(answer.body.contains("`tiny-whisper` is a model of speech"), "{path}: {}", answer.body);
        assert_eq!(answer.status, 400, "{path}");
    }
}

#[test]
fn a_model_of_speech_tells_of_itself() {
    let list = server().get("/v1/models").json(200);
    let kinds: Vec<(&Value, &Value)> =
        list["data"].as_array().unwrap().iter().map(|model| (&model["id"], &model["kind"])).collect();
    assert_eq!(kinds, [(&json!(MODEL), &json!("text")), (&json!("tiny-whisper"), &json!("speech"))]);
    assert_eq!(list["data"][1]["meta"]["n_vocab"], 51_865);
    let props = server().get("/props?model=tiny-whisper").json(200);
    assert_eq!((&props["kind"], &props["modalities"]["audio"]), (&json!("speech"), &json!(true)));
    form(&[]).send(TRANSCRIBE).json(200);
    let line = server().logged(|line| line["audio_seconds"].as_f64().is_some_and(|seconds| seconds > 1.0));
    assert_eq!((&line["model"], &line["finish"]), (&json!("tiny-whisper"), &json!("stop")));
    assert!(!line.to_string().contains("lion"), "the log has no text: {line}");
    let metrics = server().get("/metrics").body;
    let seconds = metrics
        .lines()
        .find(|line| line.starts_with("brasa:audio_seconds_total{model_name=\"tiny-whisper\"}"));
    let seconds: f64 = seconds.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(seconds > 1.0, "{seconds}");
    assert!(metrics.contains("brasa:memory_bytes{model_name=\"tiny-whisper\",part=\"weights\"}"));
}

/// Bodies that are no form, forms that are broken, sounds that are none, and more of all than is allowed.
#[test]
fn hostile_forms_and_sounds() {
    let send = |content_type: &str, body: &[u8]| {
        server().send("POST", TRANSCRIBE, &[("content-type", content_type)], body)
    };
    for (content_type, body) in [
        ("application/json", &b"{\"file\": \"http://example.com/speech.wav\"}"[..]),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=", b"x"),
        (&content_type(), b""),
        (&content_type(), b"no boundary at all"),
        (&content_type(), &Form::new(&wav(4)).0),
        (&content_type(), &[0xff; 5000]),
    ] {
        assert_eq!(send(content_type, body).error(400).2, "invalid_form", "{content_type}");
    }
    let crowd = (0..65).fold(Form(Vec::new()), |form, n| form.field(&format!("x{n}"), ""));
    assert_eq!(crowd.send(TRANSCRIBE).error(400).2, "invalid_form");
    let both = Form::new(&wav(4)).file("b.wav", &wav(4)).send(TRANSCRIBE);
    assert_eq!(both.error(400).1.as_deref(), Some("file"));

    let header = |channels: u16, rate: u32| {
        let mut bytes = wav(4);
        bytes[22..24].copy_from_slice(&channels.to_le_bytes());
        bytes[24..28].copy_from_slice(&rate.to_le_bytes());
        bytes
    };
    let mut cut = wav(4);
    cut.truncate(3000);
    let nan = {
        let mut bytes = wav(4)[..44].to_vec();
        bytes[20..22].copy_from_slice(&3_u16.to_le_bytes());
        bytes[34..36].copy_from_slice(&32_u16.to_le_bytes());
        bytes[32..34].copy_from_slice(&4_u16.to_le_bytes());
        bytes[40..44].copy_from_slice(&4000_u32.to_le_bytes());
        bytes.extend([0, 0, 0xc0, 0x7f].repeat(1000));
        bytes
    };
    for (what, bytes) in [
        ("nothing", &b""[..]),
        ("text", b"What does ember mean?"),
        ("a cut file", &cut),
        ("no channel", &header(0, 16_000)),
        ("200 channels", &header(200, 16_000)),
        ("a billion Hz", &header(1, 1_000_000_000)),
        ("no number", &nan),
    ] {
        let (_, param, code) = Form::new(bytes).send(TRANSCRIBE).error(400);
        assert_eq!((param.as_deref(), code.as_str()), (Some("file"), "invalid_audio"), "{what}");
    }
    // 30 s where 20 are allowed, in few bytes.
    let mut long = header(1, 8000);
    long[28..32].copy_from_slice(&16_000_u32.to_le_bytes());
    long.resize(44 + 480_000, 0);
    long[40..44].copy_from_slice(&480_000_u32.to_le_bytes());
    let answer = Form::new(&long).send(TRANSCRIBE);
    assert!(answer.body.contains("speech.wav: longer than"), "{}", answer.body);
    assert_eq!(answer.error(400).2, "audio_too_long");
    assert_eq!(Form::new(&vec![0; MOST_BYTES + 1]).send(TRANSCRIBE).error(413).2, "request_too_large");
    let declared = Form::new(&vec![0; MOST_BYTES + (2 << 20)]).send(TRANSCRIBE);
    assert_eq!(declared.error(413).2, "request_too_large");
    assert_eq!(form(&[]).send(TRANSCRIBE).json(200)["text"], LION, "the server goes on");
}

/// Two sounds run at a time, others queue, and a client that goes away makes room.
#[test]
fn clients_queue_and_go_away() {
    let mut both = with_speech(options());
    both.models.reverse();
    let server = Running::start(both);
    // Without a name a text is the language model's, wherever it stands.
    let text = server.post("/v1/completions", &json!({"prompt": "ember", "max_tokens": 1})).json(200);
    assert_eq!(text["model"], MODEL);
    let body = || Form::new(&wav(6)).field("model", "tiny-whisper").bytes();
    let content_type = content_type();
    let begin = || server.begin("POST", TRANSCRIBE, &[("content-type", &content_type)], &body());
    let metric = |name: &str| -> usize {
        let metrics = server.get("/metrics").body;
        let start = format!("{name}{{model_name=\"tiny-whisper\"}}");
        let line = metrics.lines().find(|line| line.starts_with(&start)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let clients: Vec<_> = (0..34).map(|_| begin()).collect();
    until("two run and the others wait", || {
        metric("vllm:num_requests_running") == 2 && metric("vllm:num_requests_waiting") > 25
    });
    // Further ones find the queue full, sooner or later.
    let mut more = Vec::new();
    until("the queue is full", || {
        more.push(begin());
        std::thread::sleep(Duration::from_millis(50));
        server.log.lock().unwrap().iter().any(|line| line.contains("queue_full"))
    });
    drop((clients, more));
    until("nothing is left", || {
        metric("vllm:num_requests_running") == 0 && metric("vllm:num_requests_waiting") == 0
    });
    let answer = server.send("POST", TRANSCRIBE, &[("content-type", &content_type)], &form(&[]).bytes());
    assert_eq!(answer.json(200)["text"], LION);
    let metrics = server.get("/metrics").body;
    assert!(
        metrics.contains(
            "vllm:request_success_total{model_name=\"tiny-whisper\",finished_reason=\"cancelled\"}"
        ),
        "{metrics}"
    );
    server.stop();
}
