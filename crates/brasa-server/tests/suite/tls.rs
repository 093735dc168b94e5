//! TLS: clients that trust the server's certificate, clients that do not finish their handshake, and files that do not serve.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use brasa_server::{Server, ServerError, ServerOptions, TlsFiles};
use brasa_tls::rustls::pki_types::pem::PemObject;
use brasa_tls::rustls::pki_types::{CertificateDer, ServerName};
use brasa_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

use super::client::{Answer, Running, options, server};
use super::device::Device;

/// The time that a client of the impatient server may be silent, its handshake included.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time in which a silent client must have been cut off, also on a slow machine.
const SOON: Duration = Duration::from_secs(10);

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

fn key(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../brasa-tls/tests/keys").join(name)
}

fn with_tls(certificates: &str, of: &str) -> ServerOptions {
    let tls = Some(TlsFiles { certificates: key(certificates), key: key(of) });
    ServerOptions { tls, ..options() }
}

/// A server that speaks TLS.
fn secure() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| Running::start(with_tls("p256.pem", "p256.key.pem")));
    &SERVER
}

/// A connection whose handshake is done, by a client that trusts one certificate.
fn connect(server: &Running, trusted: &str) -> TlsStream {
    try_connect(server, trusted).unwrap()
}

fn try_connect(server: &Running, trusted: &str) -> std::io::Result<TlsStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(key(trusted)).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(brasa_tls::ciphers().unwrap());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    connection.complete_io(&mut stream)?;
    assert_eq!(connection.alpn_protocol(), Some(&b"http/1.1"[..]));
    Ok(StreamOwned::new(connection, stream))
}

fn ask(mut stream: TlsStream, body: &str) -> Answer {
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut bytes = Vec::new();
    // An end without TLS's own would be an error here.
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

#[test]
fn answers_over_tls_are_those_without() {
    let body = json!({"prompt": "An ember is", "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    let plain = server().post("/v1/completions", &body).json(200);
    let body = body.to_string();
    let whole = ask(connect(secure(), "p256.pem"), &body).json(200);
    assert_eq!(whole["choices"], plain["choices"]);
    // Parts of a stream come together where a reader is later than the tokens.
    let device = Device::new();
    device.pace(Duration::from_millis(20));
    let options = ServerOptions { load: device.options().load, ..with_tls("p256.pem", "p256.key.pem") };
    let slow = Running::start(options);
    let streamed = ask(connect(&slow, "p256.pem"), &body.replacen('{', "{\"stream\": true,", 1));
    let text = |part: &serde_json::Value| part["choices"][0]["text"].as_str().unwrap().to_owned();
    let parts: Vec<String> = streamed.events().iter().map(text).collect();
    assert!(parts.len() > 4 && parts.concat() == text(&plain), "{parts:?}");
    slow.stop();
}

#[test]
fn a_client_that_trusts_another_certificate_refuses_the_server() {
    let refusal = try_connect(secure(), "ed25519.pem").expect_err("a stranger was trusted");
    assert!(refusal.to_string().contains("certificate"), "{refusal}");
    // Keys of other kinds serve too.
    for kind in ["ed25519", "rsa"] {
        let certificate = format!("{kind}.pem");
        let server = Running::start(with_tls(&certificate, &format!("{kind}.key.pem")));
        let body = json!({"prompt": "An ember is", "max_tokens": 1});
        ask(connect(&server, &certificate), &body.to_string()).json(200);
        server.stop();
    }
}

#[test]
fn clients_without_an_end_of_their_handshake_are_cut_off() {
    // A slow machine takes more than its patience for some handshakes: no other test asks this server.
    let impatient = ServerOptions { client_timeout: PATIENCE, ..with_tls("p256.pem", "p256.key.pem") };
    let server = Running::start(impatient);
    let began = Instant::now();
    // One that says nothing, one that begins a handshake, one that lets a byte drip now and then, one that is silent behind the
    // handshake, one that begins a head.
    let silent = TcpStream::connect(server.address).unwrap();
    let mut half = TcpStream::connect(server.address).unwrap();
    half.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).unwrap();
    let mut dripping = TcpStream::connect(server.address).unwrap();
    let drip = std::thread::spawn(move || {
        // A record of 16,384 bytes.
        let mut sent = dripping.write_all(&[0x16, 3, 1, 0x40, 0, 1, 0]);
        while sent.is_ok() && began.elapsed() < SOON * 2 {
            std::thread::sleep(Duration::from_millis(20));
            sent = dripping.write_all(&[0]);
        }
        began.elapsed()
    });
    let behind = connect(&server, "p256.pem");
    let mut head = connect(&server, "p256.pem");
    head.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nx-").unwrap();
    let ended = |stream: &mut dyn Read| {
        // A reset is an end too.
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    };
    for mut stream in [silent, half] {
        stream.set_read_timeout(Some(SOON * 2)).unwrap();
        ended(&mut stream);
    }
    for mut stream in [behind, head] {
        ended(&mut stream);
    }
    assert!(drip.join().unwrap() < SOON);
    ask(connect(&server, "p256.pem"), "{\"prompt\": \"An ember is\", \"max_tokens\": 1}").json(200);
    server.stop();
}

#[test]
fn a_client_without_tls_gets_no_answer() {
    for words in [&b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"[..], &[0xff; 5000]] {
        let mut stream = TcpStream::connect(secure().address).unwrap();
        stream.write_all(words).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        // An alert of TLS at most.
        assert!(bytes.len() < 16 && !bytes.starts_with(b"HTTP"), "{bytes:?}");
    }
}

#[test]
fn files_that_do_not_serve_are_refused_at_the_start() {
    for (certificates, of, said) in [
        ("p256.pem", "rsa.key.pem", "another key"),
        ("nowhere.pem", "p256.key.pem", "nowhere.pem"),
        ("p256.pem", "nowhere.pem", "nowhere.pem"),
        ("p256.key.pem", "p256.key.pem", "no certificate"),
        ("p256.pem", "encrypted.key.pem", "hint: "),
    ] {
        match Server::bind(with_tls(certificates, of)) {
            Err(ServerError::Options(message)) => assert!(message.contains(said), "{message}"),
            other => panic!("{certificates} {of}: {:?}", other.map(|server| server.url())),
        }
    }
}

#[test]
fn the_url_names_the_protocol() {
    let url = |options| Server::bind(options).unwrap().url();
    assert!(url(options()).starts_with("http://127.0.0.1:"));
    assert!(url(with_tls("p256.pem", "p256.key.pem")).starts_with("https://127.0.0.1:"));
}
