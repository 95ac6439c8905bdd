//! Many clients wait until their half messages are on disk. Meanwhile everything else on their connections
//! continues, and they share a sync.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::super::copies::CopyRules;
use super::super::deadlines::TimeLimits;
use super::super::event::Answer;
use super::super::listener::{Server, ServerOptions};
use crate::base::clock::SystemClock;
use crate::base::options::StoreOptions;
use crate::remoting::codes::{request as codes, response};
use crate::remoting::command::Command;
use crate::remoting::frame::{FrameReader, encode};
use crate::storage::memory::Memory;
use crate::store::Store;

const GROUP: &str = "services";
const COMMIT: &str = "8";
/// The time after which an unanswered request fails the test. Nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server with one thread for connections, on files in memory. Its policy allows everything.
struct Served {
    memory: Memory,
    server: Arc<Server>,
}

impl Served {
    fn new() -> Self {
        let memory = Memory::new();
        let options =
            StoreOptions { commit_log_file_size: Some(1 << 20), background: false, ..StoreOptions::default() };
        let store = Store::open_with(Arc::new(memory.clone()), Arc::new(SystemClock), options).unwrap();
        let (anywhere, minute) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Duration::from_mins(1));
        let options = ServerOptions {
            listen: vec![anywhere],
            unix: None,
            local: None,
            io_threads: 1,
            connections_max: 10,
            broker_name: "txstore".to_owned(),
            host: anywhere,
            tls: None,
            grpc: None,
            ha: None,
            accounts: None,
            copies: CopyRules::default(),
            memory_max: 512 << 20,
            limits: TimeLimits { idle: minute, first_frame: minute, frame: minute, unread: minute },
        };
        let server = Arc::new(Server::start(Arc::new(store), &options).unwrap());
        server.service().tables.set_topic("orders", 4, 4, None).unwrap();
        let asked = Arc::clone(&server);
        std::thread::spawn(move || {
            while let Some(request) = asked.service().policy.next(u64::from(u32::MAX)) {
                asked.service().policy.answer(request.number, Answer::Producer(1));
            }
        });
        Self { memory, server }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, reader: FrameReader::default(), asked: 0 }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
    }
}

struct Client {
    stream: TcpStream,
    reader: FrameReader,
    asked: i32,
}

impl Client {
    /// Sends a request. Returns its `opaque`.
    fn ask(&mut self, code: i32, fields: &[(&str, &str)], body: &[u8]) -> i32 {
        self.asked += 1;
        let mut command = Command::request(code, self.asked);
        command.ext_fields = fields.iter().copied().collect();
        command.body = body.to_vec();
        let mut bytes = Vec::new();
        encode(&command, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
        self.asked
    }

    fn send(&mut self, properties: &str) -> i32 {
        let fields = [("a", GROUP), ("b", "orders"), ("e", "0"), ("f", "0"), ("g", "0"), ("h", "0"), ("i", properties)];
        self.ask(codes::SEND_MESSAGE_V2, &fields, b"body")
    }

    fn send_half(&mut self, id: usize) -> i32 {
        self.send(&format!("TRAN_MSG\u{1}true\u{2}PGROUP\u{1}{GROUP}\u{2}UNIQ_KEY\u{1}ID-{id}\u{2}"))
    }

    fn commit(&mut self, half: &Command) -> i32 {
        let offset = half.ext_fields.get("msgId").unwrap();
        let offset = u64::from_str_radix(&offset[offset.len() - 16..], 16).unwrap().to_string();
        let queue_offset = half.ext_fields.get("queueOffset").unwrap();
        let fields = [
            ("producerGroup", GROUP),
            ("tranStateTableOffset", queue_offset),
            ("commitLogOffset", &offset),
            ("commitOrRollback", COMMIT),
        ];
        self.ask(codes::END_TRANSACTION, &fields, b"")
    }

    /// Returns the next answer.
    fn answer(&mut self) -> Command {
        let mut bytes = [0; 4096];
        loop {
            if let Some(answer) = self.reader.take().unwrap() {
                assert_eq!(answer.code, response::SUCCESS, "{answer:?}");
                return answer;
            }
            let length = self.stream.read(&mut bytes).expect("an answer comes");
            assert!(length > 0, "the server has closed the connection");
            self.reader.feed(&bytes[..length]);
        }
    }

    fn answers(&mut self, count: usize) -> Vec<i32> {
        let mut numbers: Vec<i32> = (0..count).map(|_| self.answer().opaque).collect();
        numbers.sort_unstable();
        numbers
    }
}

#[test]
fn halves_that_wait_for_the_disk_delay_nothing_on_their_connection_and_share_a_sync() {
    let served = Served::new();
    let (mut client, mut other) = (served.connect(), served.connect());
    // The first half of a group on a connection waits for the policy, which would change the order below.
    client.send_half(0);
    let first = client.answer();
    let slow = served.memory.hold_syncs();
    let halves: Vec<i32> = (1..=100).map(|id| client.send_half(id)).collect();
    slow.wait_for_one();
    let resent = client.send_half(1);
    let others = [client.send(""), client.ask(codes::HEART_BEAT, &[], b"{}"), client.commit(&first)];
    assert_eq!(client.answers(others.len()), others, "only the halves wait");
    other.send("");
    other.answer();
    let calls = served.memory.calls();
    drop(slow);
    assert_eq!(client.answers(halves.len() + 1), [&halves[..], &[resent]].concat());
    // One sync was already running. Another one serves all requests that came in the meantime.
    assert!(served.memory.calls() - calls <= 2, "{} syncs", served.memory.calls() - calls);
}
