//! The Hugging Face path against a server on this machine that speaks the hub's protocol.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rigel_hub::{Hub, Progress};

struct Quiet;
impl Progress for Quiet {
    fn begin(&self, _: &str, _: Option<u64>) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}

/// Serves `files` of repository `o/r` and notes the authorisation header of each request.
fn serve(files: BTreeMap<&'static str, Vec<u8>>, seen: Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut path, mut start) = (String::new(), 0usize);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                let lower = line.to_ascii_lowercase();
                if let Some(rest) = line.strip_prefix("GET ") {
                    path = rest.split(' ').next().unwrap().to_owned();
                } else if let Some(range) = lower.strip_prefix("range: bytes=") {
                    start = range.split('-').next().unwrap().trim().parse().unwrap();
                    if range.trim().ends_with("-0") {
                        start = usize::MAX;
                    }
                } else if lower.starts_with("authorization") {
                    seen.lock().unwrap().push(line.trim().to_owned());
                }
                line.clear();
            }
            let mut reply = |status: &str, headers: &str, body: &[u8]| {
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n",
                    body.len()
                );
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            };
            if path.starts_with("/api/models/o/r") {
                let siblings: Vec<String> =
                    files.keys().map(|f| format!("{{\"rfilename\":\"{f}\"}}")).collect();
                let body = format!("{{\"sha\":\"c0ffee\",\"siblings\":[{}]}}", siblings.join(","));
                reply("200 OK", "content-type: application/json\r\n", body.as_bytes());
            } else if let Some(content) =
                path.strip_prefix("/o/r/resolve/main/").and_then(|f| files.get(f))
            {
                let from = if start == usize::MAX { 0 } else { start };
                let to = if start == usize::MAX { 1.min(content.len()) } else { content.len() };
                let headers = format!(
                    "x-repo-commit: c0ffee\r\netag: \"e{}\"\r\ncontent-range: bytes {from}-{}/{}\r\n",
                    path.len(),
                    to.saturating_sub(1),
                    content.len()
                );
                reply("206 Partial Content", &headers, &content[from..to]);
            } else {
                reply("404 Not Found", "", b"");
            }
        }
    });
    format!("http://{address}")
}

#[test]
fn fetches_caches_and_reports() {
    let home = tempfile::tempdir().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let files = BTreeMap::from([
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", vec![7u8; 100_000]),
        ("tokenizer.json", b"{\"a\":1}".to_vec()),
        ("pytorch_model.bin", vec![1u8; 10]),
        ("q4/m-00001-of-00002.gguf", vec![2u8; 10]),
        ("q4/m-00002-of-00002.gguf", vec![3u8; 10]),
    ]);
    let endpoint = serve(files, seen.clone());
    let hub = Hub {
        cache: PathBuf::new(),
        python: "python3".into(),
        hf_home: Some(home.path().to_owned()),
        hf_endpoint: Some(endpoint),
        hf_token: Some("secret".into()),
    };
    let dir = hub.resolve("o/r", &Quiet).unwrap();
    assert_eq!(std::fs::read(dir.join("model.safetensors")).unwrap(), vec![7u8; 100_000]);
    assert!(dir.join("config.json").exists() && dir.join("tokenizer.json").exists());
    assert!(!dir.join("pytorch_model.bin").exists());
    assert!(seen.lock().unwrap().iter().any(|h| h.ends_with("Bearer secret")));

    // Any file of a split model stands for all of them.
    let first = hub.resolve("o/r:q4/m-00002-of-00002.gguf", &Quiet).unwrap();
    assert!(first.ends_with("q4/m-00001-of-00002.gguf"), "{}", first.display());
    assert_eq!(std::fs::read(first.with_file_name("m-00002-of-00002.gguf")).unwrap(), [3u8; 10]);

    let error = hub.resolve("o/r:absent.gguf", &Quiet).unwrap_err().to_string();
    assert!(error.contains("o/r:absent.gguf") && error.contains("404"), "{error}");

    let hub = Hub { hf_endpoint: Some("http://127.0.0.1:9".into()), ..hub };
    assert_eq!(
        hub.resolve("o/r", &Quiet).unwrap(),
        dir,
        "the cached snapshot serves without a network"
    );
    let error = hub.resolve("o/other", &Quiet).unwrap_err().to_string();
    assert!(error.contains("repository o/other"), "{error}");

    let error = hub.resolve("no-such-model", &Quiet).unwrap_err().to_string();
    assert!(error.contains("smollm2-135m"), "{error}");
    assert!(hub.resolve("./no/such.gguf", &Quiet).is_err());
}
