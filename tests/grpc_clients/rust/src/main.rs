//! A process with RocketMQ's Rust client, driven by JSON lines: a command a line on stdin, a reply a line on stdout.
//!
//! In: {"id", "command", and its arguments}. Out: {"id", "result"}, or {"id", "error", "code"}. Always: commands run
//! concurrently; the end of stdin ends the process. Not here: what is right, which the scenarios decide.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Of a refusal the client tells the name alone; of one of a stream gRPC's.
const CODES: [(&str, i32); 16] = [
    ("InvalidArgument", 3),
    ("Unauthenticated", 16),
    ("BAD_REQUEST", 40000),
    ("ILLEGAL_TOPIC", 40002),
    ("ILLEGAL_CONSUMER_GROUP", 40003),
    ("ILLEGAL_MESSAGE_GROUP", 40006),
    ("ILLEGAL_FILTER_EXPRESSION", 40010),
    ("ILLEGAL_INVISIBLE_TIME", 40011),
    ("ILLEGAL_DELIVERY_TIME", 40012),
    ("INVALID_RECEIPT_HANDLE", 40013),
    ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", 40014),
    ("UNAUTHORIZED", 40100),
    ("MESSAGE_NOT_FOUND", 40401),
    ("TOPIC_NOT_FOUND", 40402),
    ("MESSAGE_BODY_TOO_LARGE", 41301),
    ("INTERNAL_SERVER_ERROR", 50001),
];

#[derive(Clone)]
enum Held {
    Producer(Arc<Producer>, Arc<Mutex<Vec<String>>>),
    Simple(Arc<SimpleConsumer>, String, Wanted),
}

/// An expression over tags or SQL.
#[derive(Clone)]
struct Wanted {
    kind: FilterType,
    expression: String,
}

#[derive(Default)]
struct State {
    handles: u64,
    clients: HashMap<u64, Held>,
    messages: HashMap<u64, Arc<MessageView>>,
}

type Shared = Arc<Mutex<State>>;
type Answer = Result<Value, ClientError>;

fn text(facts: &Value, name: &str) -> String {
    facts[name].as_str().unwrap_or_default().to_string()
}

fn options(facts: &Value) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(text(facts, "endpoints"));
    options.set_enable_tls(facts["tls"].as_bool().unwrap_or(false));
    if facts["access_key"].is_string() {
        options.set_access_key(text(facts, "access_key"));
        options.set_secret_key(text(facts, "secret_key"));
    }
    if let Some(seconds) = facts["await_s"].as_u64() {
        // To the client it is the time until its receive ends; the server's poll must fit into it.
        options.set_long_polling_timeout(Duration::from_secs(seconds + 10));
    }
    options
}

fn next(state: &Shared) -> u64 {
    let mut state = state.lock().unwrap();
    state.handles += 1;
    state.handles
}

fn hold(state: &Shared, client: Held) -> Value {
    let handle = next(state);
    state.lock().unwrap().clients.insert(handle, client);
    json!(handle)
}

fn held(state: &Shared, facts: &Value) -> Held {
    let handle = facts["handle"].as_u64().unwrap();
    state.lock().unwrap().clients[&handle].clone()
}

fn producer_of(state: &Shared, facts: &Value) -> Arc<Producer> {
    match held(state, facts) {
        Held::Producer(producer, _) => producer,
        Held::Simple(..) => panic!("a consumer's handle"),
    }
}

fn consumer_of(state: &Shared, facts: &Value) -> (Arc<SimpleConsumer>, String, Wanted) {
    match held(state, facts) {
        Held::Simple(consumer, topic, wanted) => (consumer, topic, wanted),
        Held::Producer(..) => panic!("a producer's handle"),
    }
}

async fn start_producer(state: &Shared, facts: &Value) -> Answer {
    let mut option = ProducerOption::default();
    let topics = facts["topics"].as_array().unwrap();
    option.set_topics(topics.iter().map(|topic| topic.as_str().unwrap()).collect());
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut producer = if facts["answers"].is_object() {
        let (answers, seen) = (facts["answers"].clone(), Arc::clone(&log));
        let checker = move |_, message: MessageView| answer_check(&answers, &seen, message.body());
        Producer::new_transaction_producer(option, options(facts), Box::new(checker))?
    } else {
        Producer::new(option, options(facts))?
    };
    producer.start().await?;
    Ok(hold(state, Held::Producer(Arc::new(producer), log)))
}

/// By the body; the last answer is repeated.
fn answer_check(answers: &Value, seen: &Mutex<Vec<String>>, body: &[u8]) -> TransactionResolution {
    let body = String::from_utf8_lossy(body).to_string();
    let mut seen = seen.lock().unwrap();
    let before = seen.iter().filter(|one| **one == body).count();
    let said = answers[&body].as_array().cloned().unwrap_or_default();
    seen.push(body);
    match said.get(before.min(said.len().saturating_sub(1))).and_then(Value::as_str) {
        Some("COMMIT") => TransactionResolution::COMMIT,
        Some("ROLLBACK") => TransactionResolution::ROLLBACK,
        _ => TransactionResolution::UNKNOWN,
    }
}

fn message_of(facts: &Value, transactional: bool) -> Result<impl Message, ClientError> {
    let body = match facts["body_bytes"].as_u64() {
        Some(bytes) => vec![0; usize::try_from(bytes).unwrap()],
        None => text(facts, "body").into_bytes(),
    };
    let mut message = MessageBuilder::builder().set_topic(text(facts, "topic")).set_body(body);
    if facts["tag"].is_string() {
        message = message.set_tag(text(facts, "tag"));
    }
    if let Some(keys) = facts["keys"].as_array() {
        message = message.set_keys(keys.iter().map(|key| key.as_str().unwrap()).collect());
    }
    if let Some(properties) = facts["properties"].as_object() {
        let pairs = properties.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_string()));
        message = message.set_properties(pairs.collect::<HashMap<String, String>>());
    }
    if facts["message_group"].is_string() {
        message = message.set_message_group(text(facts, "message_group"));
    }
    if let Some(deliver_ms) = facts["deliver_ms"].as_i64() {
        message = message.set_delivery_timestamp(deliver_ms / 1000);
    }
    if transactional {
        message = message.enable_transaction();
    }
    message.build()
}

async fn send(state: &Shared, facts: &Value) -> Answer {
    let receipt = producer_of(state, facts).send(message_of(facts, false)?).await?;
    Ok(json!({ "message_id": receipt.message_id() }))
}

async fn transact(state: &Shared, facts: &Value) -> Answer {
    let producer = producer_of(state, facts);
    let transaction = producer.send_transaction_message(message_of(facts, true)?).await?;
    let message_id = transaction.message_id().to_string();
    match facts["end"].as_str() {
        Some("COMMIT") => transaction.commit().await?,
        Some("ROLLBACK") => transaction.rollback().await?,
        _ => {}
    }
    Ok(json!({ "message_id": message_id }))
}

fn checks(state: &Shared, facts: &Value) -> Answer {
    match held(state, facts) {
        Held::Producer(_, log) => Ok(json!(*log.lock().unwrap())),
        Held::Simple(..) => panic!("a consumer's handle"),
    }
}

async fn start_simple(state: &Shared, facts: &Value) -> Answer {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![text(facts, "topic")]);
    option.set_consumer_group(text(facts, "group"));
    let mut consumer = SimpleConsumer::new(option, options(facts))?;
    consumer.start().await?;
    let wanted = match facts["sql"].as_str() {
        Some(sql) => Wanted { kind: FilterType::Sql, expression: sql.to_string() },
        None => Wanted { kind: FilterType::Tag, expression: facts["tags"].as_str().unwrap_or("*").to_string() },
    };
    Ok(hold(state, Held::Simple(Arc::new(consumer), text(facts, "topic"), wanted)))
}

async fn receive(state: &Shared, facts: &Value) -> Answer {
    let (consumer, topic, wanted) = consumer_of(state, facts);
    let invisible = Duration::from_secs(facts["invisible_s"].as_u64().unwrap());
    let most = i32::try_from(facts["max"].as_i64().unwrap()).unwrap();
    let filter = FilterExpression::new(wanted.kind, wanted.expression);
    let views = consumer.receive_with(topic, &filter, most, invisible).await?;
    Ok(views.into_iter().map(|view| numbered(state, view)).collect())
}

fn numbered(state: &Shared, view: MessageView) -> Value {
    let number = next(state);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut keys = view.keys().to_vec();
    keys.sort();
    let facts = json!({
        "message_id": view.message_id(),
        "topic": view.topic(),
        "body": String::from_utf8_lossy(view.body()),
        "tag": view.tag(),
        "keys": keys,
        "properties": view.properties(),
        "message_group": view.message_group(),
        "attempt": view.delivery_attempt(),
        "at_ms": u64::try_from(now.as_millis()).unwrap(),
        "number": number,
    });
    state.lock().unwrap().messages.insert(number, Arc::new(view));
    facts
}

async fn ack(state: &Shared, facts: &Value) -> Answer {
    let number = facts["number"].as_u64().unwrap();
    let view = Arc::clone(&state.lock().unwrap().messages[&number]);
    consumer_of(state, facts).0.ack(&*view).await?;
    Ok(Value::Null)
}

/// Shuts down what no other command still uses.
async fn stop(state: &Shared, facts: &Value) -> Answer {
    let handle = facts["handle"].as_u64().unwrap();
    let client = state.lock().unwrap().clients.remove(&handle);
    match client {
        Some(Held::Producer(producer, _)) => {
            if let Ok(producer) = Arc::try_unwrap(producer) {
                producer.shutdown().await?;
            }
        }
        Some(Held::Simple(consumer, ..)) => {
            if let Ok(consumer) = Arc::try_unwrap(consumer) {
                consumer.shutdown().await?;
            }
        }
        None => {}
    }
    Ok(Value::Null)
}

async fn reply(state: &Shared, facts: &Value) -> Value {
    let answer = match facts["command"].as_str().unwrap() {
        "producer.start" => start_producer(state, facts).await,
        "producer.send" => send(state, facts).await,
        "producer.transact" => transact(state, facts).await,
        "producer.checks" => checks(state, facts),
        "simple.start" => start_simple(state, facts).await,
        "simple.receive" => receive(state, facts).await,
        "simple.ack" => ack(state, facts).await,
        "stop" => stop(state, facts).await,
        other => return json!({ "id": facts["id"], "error": format!("no such command: {other}") }),
    };
    match answer {
        Ok(result) => json!({ "id": facts["id"], "result": result }),
        Err(problem) => json!({ "id": facts["id"], "error": problem.to_string(), "code": code_of(&problem) }),
    }
}

fn code_of(problem: &ClientError) -> Option<i32> {
    let text = problem.to_string();
    let (_, after) = text.split_once("code: ").or_else(|| text.split_once("source: status: "))?;
    let name = after.split(',').next()?;
    CODES.iter().find(|(known, _)| *known == name).map(|(_, code)| *code)
}

#[tokio::main]
async fn main() {
    let state = Shared::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let facts: Value = serde_json::from_str(&line).unwrap();
            println!("{}", reply(&state, &facts).await);
        });
    }
    std::process::exit(0);
}
