//! Embeddings over HTTP: OpenAI's route and Ollama's two.

use serde_json::{Value, json};

use crate::harness::{Server, idle, wait_until};

const WIDTH: usize = 64;

fn tiny() -> Server {
    Server::start(&["--served-model-name", "tiny"])
}

fn vector(value: &Value) -> Vec<f32> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}")).iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// The vectors of a request to OpenAI's route.
fn embed(server: &Server, body: Value) -> Vec<Vec<f32>> {
    let answer = server.post("/v1/embeddings", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    let data = body["data"].as_array().unwrap();
    for (index, item) in data.iter().enumerate() {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
    }
    assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("tiny")));
    assert_eq!(body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]);
    data.iter().map(|item| vector(&item["embedding"])).collect()
}

#[test]
fn every_form_of_input_gives_the_same_vectors() {
    let server = tiny();
    let ids = |text: &str| server.post("/tokenize", &json!({"prompt": text})).json()["tokens"].clone();
    let texts = embed(&server, json!({"input": ["hello", "größe 你好"]}));
    assert!(texts[0] != texts[1] && texts.iter().all(|vector| vector.len() == WIDTH));
    assert!(texts.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-6));
    assert_eq!(embed(&server, json!({"input": "hello", "model": "tiny"})), texts[..1]);
    assert_eq!(embed(&server, json!({"input": ids("hello")})), texts[..1]);
    assert_eq!(embed(&server, json!({"input": [ids("hello"), ids("größe 你好")]})), texts);
    // More than are in flight at once, in order.
    let many: Vec<String> = (0..130).map(|nth| format!("text {nth}")).collect();
    let together = embed(&server, json!({"input": many}));
    for nth in [0, 63, 64, 129] {
        assert_eq!(embed(&server, json!({"input": many[nth]}))[0], together[nth]);
    }
}

#[test]
fn base64_dimensions_pooling_and_normalisation() {
    use base64::Engine as _;
    let server = tiny();
    let plain = embed(&server, json!({"input": "hello"})).remove(0);
    let answer = server.post("/v1/embeddings", &json!({"input": "hello", "encoding_format": "base64"})).json();
    let bytes = base64::engine::general_purpose::STANDARD.decode(answer["data"][0]["embedding"].as_str().unwrap());
    let decoded: Vec<f32> = bytes.unwrap().chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(decoded, plain);
    let raw = embed(&server, json!({"input": "hello", "normalize": false})).remove(0);
    assert!((length(&raw) - 1.0).abs() > 0.1);
    let cut = embed(&server, json!({"input": "hello", "dimensions": 5})).remove(0);
    assert!(cut.len() == 5 && (length(&cut) - 1.0).abs() < 1e-6);
    assert!(
        cut.iter().zip(&raw).all(|(cut, value)| (f64::from(*cut) - f64::from(*value) / length(&raw[..5])).abs() < 1e-6)
    );
    let last = embed(&server, json!({"input": "hello", "pooling": "last"})).remove(0);
    assert_ne!(last, plain);
    assert_eq!(embed(&server, json!({"input": "hello", "pooling": "mean", "user": "u", "temperature": 1}))[0], plain);
    for order in ["little", "native"] {
        assert_eq!(embed(&server, json!({"input": "hello", "embed_dtype": "float32", "endianness": order}))[0], plain);
    }
}

#[test]
fn wrong_fields_are_refused_by_the_clients_names() {
    let server = tiny();
    let long = "word ".repeat(9000);
    for (body, param, words) in [
        (json!({}), "input", "input is required"),
        (json!({"input": ""}), "input", "input must not be empty"),
        (json!({"input": ["a", ""]}), "input", "(input[1])"),
        (json!({"input": [[1, 2], [70_000]]}), "input", "70000"),
        (json!({"input": long}), "input", "maximum context length"),
        (json!({"input": vec!["a"; 2049]}), "input", "2049 texts"),
        (json!({"input": vec![[5]; 2049]}), "input", "2049 texts"),
        (json!({"input": "a", "dimensions": 0}), "dimensions", "between 1 and 64"),
        (json!({"input": "a", "dimensions": 65}), "dimensions", "between 1 and 64"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format", "hex"),
        (json!({"input": "a", "pooling": "max"}), "pooling", "max"),
        (json!({"input": "a", "embed_dtype": "float16"}), "embed_dtype", "float32"),
        (json!({"input": "a", "endianness": "big"}), "endianness", "little"),
        (json!({"messages": [{"role": "user", "content": "a"}]}), "messages", "not supported"),
    ] {
        let answer = server.post("/v1/embeddings", &body);
        let error = &answer.json()["error"];
        let message = error["message"].as_str().unwrap();
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{message}");
        assert!(message.contains(words), "{message}");
    }
    // Among more than are in flight at once.
    let many: Vec<&str> = std::iter::repeat_n("a", 70).chain([""]).collect();
    let empty = server.post("/v1/embeddings", &json!({"input": many})).json();
    assert!(empty["error"]["message"].as_str().unwrap().contains("(input[70])"), "{empty}");
    let long = server.post("/v1/embeddings", &json!({"input": ["a", long]})).json();
    assert_eq!(long["error"]["code"], "context_length_exceeded");
    // Cut where it is asked for: the last two tokens.
    let cut = embed(&server, json!({"input": [5, 6, 7, 8], "truncate_prompt_tokens": 2}));
    assert_eq!(cut, embed(&server, json!({"input": [7, 8]})));
}

#[test]
fn ollamas_routes_give_the_same_vectors() {
    let server = tiny();
    let want = embed(&server, json!({"input": ["hello", "there"]}));
    let answer = server.post("/api/embed", &json!({"model": "tiny:latest", "input": ["hello", "there"]}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body = answer.json();
    let vectors: Vec<Vec<f32>> = body["embeddings"].as_array().unwrap().iter().map(vector).collect();
    assert_eq!((&body["model"], vectors), (&json!("tiny:latest"), want));
    assert!(body["total_duration"].as_u64() > Some(0) && body["load_duration"] == 0);
    assert!(body["prompt_eval_count"].as_u64() > Some(0));
    let one =
        json!({"model": "tiny", "input": "hello", "dimensions": 3, "keep_alive": "5m", "options": {"num_ctx": 5}});
    assert_eq!(vector(&server.post("/api/embed", &one).json()["embeddings"][0]).len(), 3);
    let raw = embed(&server, json!({"input": "hello", "normalize": false})).remove(0);
    let older = server.post("/api/embeddings", &json!({"model": "tiny", "prompt": "hello"})).json();
    assert_eq!(vector(&older["embedding"]), raw);
    let of_last = json!({"model": "tiny", "input": "hello", "pooling": "last", "normalize": false});
    let of_last = vector(&server.post("/api/embed", &of_last).json()["embeddings"][0]);
    assert_eq!(of_last, embed(&server, json!({"input": "hello", "pooling": "last", "normalize": false}))[0]);
    assert_ne!(of_last, raw);
    // Nothing is asked for but the model.
    assert_eq!(server.post("/api/embed", &json!({"model": "tiny"})).json()["embeddings"], json!([]));
    assert_eq!(
        server.post("/api/embeddings", &json!({"model": "tiny", "prompt": ""})).json(),
        json!({"embedding": []})
    );
    for body in [json!({"input": "hello"}), json!({"model": "nobody", "input": "hello"}), json!({"model": "nobody"})] {
        let answer = server.post("/api/embed", &body);
        assert!(answer.status >= 400 && answer.json()["error"].is_string(), "{}", answer.body);
    }
}

#[test]
fn ollama_cuts_the_end_of_what_is_too_long_unless_told_otherwise() {
    let server = tiny();
    let model_len = server.get("/v1/models").json()["data"][0]["max_model_len"].as_u64().unwrap() as usize;
    let ids: Vec<usize> = (0..model_len + 50).map(|nth| nth % 300).collect();
    let cut = server.post("/api/embed", &json!({"model": "tiny", "input": ids})).json();
    assert_eq!(vector(&cut["embeddings"][0]), embed(&server, json!({"input": ids[..model_len]}))[0]);
    assert_eq!(cut["prompt_eval_count"], model_len);
    let last = embed(&server, json!({"input": ids, "truncate_prompt_tokens": -1}));
    assert_eq!(last, embed(&server, json!({"input": ids[50..]})));
    let refused = server.post("/api/embed", &json!({"model": "tiny", "input": ids, "truncate": false}));
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("input"), "{}", refused.body);
}

#[test]
fn a_client_that_leaves_aborts_its_texts() {
    let server = tiny();
    let texts: Vec<Vec<usize>> = (0..200).map(|nth| (0..1900).map(|at| (at * 7 + nth) % 300).collect()).collect();
    let socket = server.open("/v1/embeddings", &json!({"input": texts}));
    wait_until("a full group", || {
        let n_texts = server.metric("num_requests_in_flight");
        assert!(n_texts <= 64.0, "{n_texts}");
        n_texts == 64.0
    });
    drop(socket);
    wait_until("no request", || idle(&server));
    assert!(server.metric("client_disconnects_total") > 0.0);
}
