//! Two networks: `inside`, where every address leads to the relay, and an outer one with a name
//! server and servers.

use std::collections::HashMap;
use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags,
    SocketType, sockopt,
};
use rustix::process::WaitOptions;
use rustix::thread::LinkNameSpaceType;
use serde_json::{Value, json};

use crate::kernel::sys;
use crate::network::relay::host_resolver::NameSources;
use crate::network::relay::relay_messages::MAX_MESSAGE_BYTES;
use crate::network::relay::{RelaySockets, run_with};
use crate::network::supervisor::proxy_password::ProxyToken;
use crate::plan::Network;

/// The port of every server, and of the listener inside.
pub const PORT: u16 = 8080;

/// The port of the name server.
const DNS_PORT: u16 = 5300;

const TIMEOUT: Duration = Duration::from_secs(120);

/// The relay's network, with one own address.
const OUTSIDE: &str = "
    ip link set lo up
    ip link set far up
    ip address add 93.184.217.1/32 dev far
    ip route add 93.184.216.0/24 dev far";

/// The network of servers on other hosts.
const FAR: &str = "
    ip link set lo up
    ip link add near type veth peer name far netns $OUTSIDE
    ip link set near up
    ip route add 93.184.217.1/32 dev near
    ip route add local 93.184.216.0/24 dev lo";

const INSIDE: &str = "
    ip link set lo up
    ip address add 10.255.255.1/32 dev lo
    ip -6 address add fd00:5a::1/128 dev lo nodad
    ip route add local 0.0.0.0/0 dev lo src 10.255.255.1
    ip -6 route add local ::/0 dev lo src fd00:5a::1";

/// `host` or `host:port`, one per line.
pub fn rules(allowed: &[&str]) -> Network {
    let rule = |(index, rule): (usize, &&str)| {
        let (host, port) = rule
            .rsplit_once(':')
            .map_or((*rule, None), |(host, port)| (host, port.parse::<u16>().ok()));
        serde_json::json!([host, port, index + 1])
    };
    let hosts: Vec<Value> = allowed.iter().enumerate().map(rule).collect();
    let plan = serde_json::json!({
        "mode": "filtered", "default": "deny", "default_source": null, "ask_timeout_s": 1,
        "denied": [], "approved": [],
        "local_ports": [], "published": [], "http": null,
        "allowed": [{"source": "paddock.toml", "hosts": hosts}],
    });
    serde_json::from_value(plan).unwrap()
}

pub struct TwoNetworks {
    inside: OwnedFd,
    outside: OwnedFd,
    far: OwnedFd,
    line: Arc<OwnedFd>,
    messages: Receiver<Value>,
    names: Arc<Mutex<NameServer>>,
    relay: u32,
    servers: PathBuf,
    /// The HTTP helper's end of the handover socket.
    http_helper: Mutex<Option<OwnedFd>>,
    /// The number of owner replies that were sent.
    owner_found: Arc<AtomicUsize>,
}

#[derive(Default)]
struct NameServer {
    known: HashMap<String, String>,
    looked_up_names: Vec<String>,
    does_not_answer: bool,
}

/// Runs `body` in its own process, beside a relay with these rules. The relay ends with the body.
pub fn in_two_networks(plan: &Network, body: impl FnOnce(&TwoNetworks)) {
    const SINGLE_TEST_VARIABLE: &str = "PADDOCK_TEST_ALONE";
    if std::env::var_os(SINGLE_TEST_VARIABLE).is_none() {
        // Namespaces belong to a process: the test runs again as the only test of a new process.
        let name = std::thread::current().name().unwrap().to_owned();
        let mut alone = Command::new("unshare");
        alone
            .args(["--user", "--map-root-user", "--net"])
            .arg(std::env::current_exe().unwrap())
            .env(SINGLE_TEST_VARIABLE, "");
        let ended =
            alone.args(["--exact", &name, "--nocapture", "--test-threads=1"]).output().unwrap();
        let test_output = [ended.stdout, ended.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat();
        assert!(ended.status.success() && test_output.contains("1 passed"), "{test_output}");
        return;
    }
    let namespace = || OwnedFd::from(std::fs::File::open("/proc/thread-self/ns/net").unwrap());
    let leave =
        || sys::numeric_syscall(libc::SYS_unshare, [libc::CLONE_NEWNET as u64, 0, 0, 0]).unwrap();
    let outside = namespace();
    let relay = std::process::id();
    leave();
    let far = namespace();
    shell(&FAR.replace("$OUTSIDE", &format!("/proc/{relay}/fd/{}", outside.as_raw_fd())));
    leave();
    shell(INSIDE);
    let inside = namespace();
    let mut sockets = sockets(&plan.local_ports);
    enter(&outside);
    shell(OUTSIDE);

    let directory = std::env::temp_dir().join(format!("paddock-relay-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (hosts, servers) = (directory.join("hosts"), directory.join("resolv.conf"));
    std::fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    std::fs::write(&servers, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();

    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let (handover, http_helper) = crate::kernel::socket_pair::pair().unwrap();
    sockets.handover = Some(handover);
    let names = Arc::new(Mutex::new(NameServer::default()));
    let written = servers.clone();
    // Dropping the closure closes this copy of the other end.
    let child = sys::fork(move || {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let (line, (hear, messages)) = (Arc::new(theirs), channel());
            sockopt::set_socket_timeout(&http_helper, sockopt::Timeout::Recv, Some(TIMEOUT))
                .unwrap();
            let http_helper = Mutex::new(Some(http_helper));
            let owner_found = Arc::default();
            let networks = TwoNetworks {
                inside,
                outside,
                far,
                line,
                messages,
                names,
                relay,
                servers: written,
                http_helper,
                owner_found,
            };
            networks.answer_names();
            networks.read_relay(hear);
            body(&networks);
        }));
        if ended.is_err() { 101 } else { 0 }
    });
    let relayed = run_with(
        plan,
        sockets,
        Some(ProxyToken::known()),
        ours,
        NameSources { hosts, servers, port: DNS_PORT },
    );
    let (_, status) =
        rustix::process::waitpid(Some(child.unwrap()), WaitOptions::empty()).unwrap().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
    assert_eq!((relayed, status.exit_status()), (0, Some(0)), "what went wrong stands above");
}

fn send(line: &OwnedFd, message: &Value) {
    rustix::net::send(line, message.to_string().as_bytes(), SendFlags::NOSIGNAL).unwrap();
}

fn shell(commands: &str) {
    let done = Command::new("sh").args(["-ec", commands]).status().unwrap();
    assert!(done.success(), "{commands}");
}

fn enter(namespace: &OwnedFd) {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .unwrap();
}

fn sockets(local_ports: &[u16]) -> RelaySockets {
    let tcp4 = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
    let tcp6 = TcpListener::bind("[::]:53").unwrap();
    let udp4 = UdpSocket::bind("0.0.0.0:53").unwrap();
    let udp6 = rustix::net::socket(AddressFamily::INET6, SocketType::DGRAM, None).unwrap();
    sockopt::set_ipv6_v6only(&udp6, true).unwrap();
    sys::turn_socket_option_on(&udp6, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT).unwrap();
    rustix::net::bind(&udp6, &"[::]:53".parse::<SocketAddr>().unwrap()).unwrap();
    let local = local_ports
        .iter()
        .map(|port| (*port, TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).unwrap().into()));
    let local = local.collect();
    let udp4 = OwnedFd::from(udp4);
    sys::turn_socket_option_on(&udp4, libc::IPPROTO_IP, libc::IP_PKTINFO).unwrap();
    sys::turn_socket_option_on(&udp6, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO).unwrap();
    let protocol = Some(rustix::net::netlink::SOCK_DIAG);
    let diagnosis = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        protocol,
    );
    let (dialled, names) = (vec![tcp4.into(), tcp6.into()], vec![udp4, udp6]);
    RelaySockets { dialled, names, local, diagnosis: diagnosis.ok(), ..RelaySockets::default() }
}

impl TwoNetworks {
    /// Runs a function in the command's network.
    pub fn inside<T>(&self, act: impl FnOnce() -> T) -> T {
        enter(&self.inside);
        let done = act();
        enter(&self.outside);
        done
    }

    pub fn name(&self, name: &str, addresses: &str) {
        self.names.lock().unwrap().known.insert(name.into(), addresses.into());
    }

    /// From here on the name server does not answer.
    pub fn stop_name_server(&self) {
        self.names.lock().unwrap().does_not_answer = true;
    }

    pub fn looked_up_names(&self) -> Vec<String> {
        self.names.lock().unwrap().looked_up_names.clone()
    }

    /// Asks for an IPv4 address like a program inside.
    pub fn ask(&self, name: &str) -> Option<Ipv4Addr> {
        let socket = self.inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect("9.9.9.9:53").unwrap();
        socket.send(&question(name, 1)).unwrap();
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).unwrap();
        let answer = &answer[..length];
        match answer[3] & 15 {
            0 => {
                let at = answer
                    .windows(6)
                    .rposition(|window| window[..2] == [0, 4] && window[2] == 198)
                    .unwrap();
                Some(Ipv4Addr::new(answer[at + 2], answer[at + 3], answer[at + 4], answer[at + 5]))
            }
            3 => None,
            code => panic!("{code}"),
        }
    }

    pub fn dial(&self, name: &str) -> TcpStream {
        self.dial_address(&self.ask(name).unwrap().to_string())
    }

    pub fn dial_address(&self, address: &str) -> TcpStream {
        let address: IpAddr = address.parse().unwrap();
        let stream = self.inside(|| TcpStream::connect((address, PORT)).unwrap());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// The next decision or question of the relay.
    pub fn next_message(&self) -> Value {
        self.messages.recv_timeout(TIMEOUT).unwrap()
    }

    pub fn is_silent(&self) -> bool {
        self.messages.try_recv().is_err()
    }

    /// Waits until the relay has got this many owner replies.
    pub fn wait_for_callers(&self, expected: usize) {
        let deadline = Instant::now() + TIMEOUT;
        while self.owner_found.load(Ordering::SeqCst) < expected {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        // The relay handles earlier messages first.
        self.ask("new.example");
    }

    /// Sends the supervisor's answer to a question.
    pub fn reply(&self, question: &Value, verdict: &str) {
        let by = "terminal";
        let reply = json!({ "answer": { "id": question["ask"]["id"], "verdict": verdict, "by": by,
        "reason": null, "ms": 7 } });
        send(&self.line, &reply);
    }

    /// The next message to the HTTP helper: JSON, the bytes after it, and a connection.
    pub fn next_handover(&self) -> (Value, Vec<u8>, Option<TcpStream>) {
        let (mut bytes, mut space) =
            (vec![0; 128 << 10], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (http_helper, buffers) =
            (self.http_helper.lock().unwrap(), &mut [IoSliceMut::new(&mut bytes)]);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length =
            rustix::net::recvmsg(http_helper.as_ref().unwrap(), buffers, &mut control, flags)
                .unwrap()
                .bytes;
        let connection = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let connection = connection.map(|connection| {
            let stream = TcpStream::from(connection);
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream
        });
        let mut parts = bytes[..length].splitn(2, |byte| *byte == 0);
        let message = serde_json::from_slice(parts.next().unwrap()).unwrap();
        (message, parts.next().unwrap_or_default().to_vec(), connection)
    }

    /// Requests a connection like the HTTP helper.
    pub fn ask_to_dial(&self, id: u64, host: &str) {
        let http_helper = self.http_helper.lock().unwrap();
        send(http_helper.as_ref().unwrap(), &json!({ "dial": host, "id": id, "port": PORT }));
    }

    /// Closes the HTTP helper's socket.
    pub fn end_http_helper(&self) {
        *self.http_helper.lock().unwrap() = None;
    }

    /// Answers owner requests at once with this process.
    fn read_relay(&self, hear: Sender<Value>) {
        let line = Arc::clone(&self.line);
        let process = json!({ "pid": std::process::id(), "exe": "/usr/bin/test" });
        let owner_found = Arc::clone(&self.owner_found);
        std::thread::spawn(move || {
            let mut buffer = [0; MAX_MESSAGE_BYTES];
            while let Ok((length @ 1.., _)) =
                rustix::net::recv(&*line, &mut buffer, RecvFlags::empty())
            {
                for one in buffer[..length].split(|byte| *byte == b'\n') {
                    let message: Value = serde_json::from_slice(one).unwrap();
                    match message.get("who") {
                        Some(who) => {
                            send(&line, &json!({ "who": { "id": who["id"], "process": process } }));
                            owner_found.fetch_add(1, Ordering::SeqCst);
                        }
                        None => hear.send(message).unwrap(),
                    }
                }
            }
        });
    }

    /// Serves at every outer address; each connection has its own thread.
    pub fn serve(&self, handler: impl Fn(TcpStream) + Send + Sync + 'static) {
        let handler = Arc::new(handler);
        for network in [&self.far, &self.outside] {
            enter(network);
            let listener =
                rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            enter(&self.outside);
            rustix::net::bind(&listener, &SocketAddr::from(([0, 0, 0, 0], PORT))).unwrap();
            rustix::net::listen(&listener, 4096).unwrap();
            let handler = Arc::clone(&handler);
            std::thread::spawn(move || {
                for stream in TcpListener::from(listener).incoming() {
                    let handler = Arc::clone(&handler);
                    let run = move || handler(stream.unwrap());
                    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap();
                }
            });
        }
    }

    /// A server that only reads. The returned function gives the bytes of the last connection that
    /// sent some.
    pub fn record(&self) -> impl Fn() -> Vec<u8> {
        let (send, messages) = channel();
        let send = Mutex::new(send);
        self.serve(move |mut stream| {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all);
            if !all.is_empty() {
                send.lock().unwrap().send(all).unwrap();
            }
        });
        move || messages.recv_timeout(TIMEOUT).unwrap()
    }

    pub fn relay_descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.relay)).unwrap().count()
    }

    /// Waits until at most this many descriptors are open, plus the pipes that are kept.
    pub fn wait_for_descriptors(&self, expected: usize) {
        let deadline = Instant::now() + TIMEOUT;
        while self.relay_descriptors() > expected + 16 {
            assert!(Instant::now() < deadline, "{} of {expected}", self.relay_descriptors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Replaces the file by a new one, like other programs.
    pub fn replace_servers(&self, text: &str) {
        let fresh = self.servers.with_extension("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, &self.servers).unwrap();
    }

    fn answer_names(&self) {
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, DNS_PORT)).unwrap();
        let streams = TcpListener::bind((Ipv4Addr::LOCALHOST, DNS_PORT)).unwrap();
        let names = Arc::clone(&self.names);
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, asker)) = datagrams.recv_from(&mut question) {
                let mut names = names.lock().unwrap();
                for answer in names.answers(&question[..length]) {
                    datagrams.send_to(&answer, asker).unwrap();
                }
            }
        });
        let names = Arc::clone(&self.names);
        std::thread::spawn(move || {
            for stream in streams.incoming() {
                let mut stream = stream.unwrap();
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut question = vec![0; u16::from_be_bytes(length).into()];
                stream.read_exact(&mut question).unwrap();
                if let Some(answer) = names.lock().unwrap().answer(&question, true) {
                    stream
                        .write_all(&[&(answer.len() as u16).to_be_bytes()[..], &answer].concat())
                        .unwrap();
                }
            }
        });
    }
}

impl NameServer {
    /// The answer, and false ones for a lying server.
    fn answers(&mut self, question: &[u8]) -> Vec<Vec<u8>> {
        let Some(answer) = self.answer(question, false) else { return Vec::new() };
        let (name, _) = looked_up_names(question);
        let lie =
            self.known.get(&name).and_then(|known| known.split(' ').next()?.strip_prefix("liar:"));
        let other = [&[answer[0] ^ 1][..], &answer[1..]].concat();
        match lie {
            None => vec![answer],
            Some("id") => vec![other],
            Some("name") => {
                let mut answer = answer;
                answer[13] ^= 1;
                vec![answer]
            }
            Some("short") => vec![answer[..answer.len() - 3].to_vec()],
            Some("noise") => vec![vec![0xff; 4096]],
            Some(_) => vec![other, answer],
        }
    }

    fn answer(&mut self, question: &[u8], by_stream: bool) -> Option<Vec<u8>> {
        let (name, end) = looked_up_names(question);
        self.looked_up_names.push(if by_stream { format!("tcp {name}") } else { name.clone() });
        if self.does_not_answer {
            return None;
        }
        let is_v4 = question[end + 1] == 1;
        if self.known.get(&name).is_some_and(|known| known.starts_with("silent")) {
            return None;
        }
        let Some(known) = self.known.get(&name) else {
            return Some(
                [&question[..2], &[0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0], &question[12..end + 4]]
                    .concat(),
            );
        };
        if known.starts_with("truncated") && !by_stream {
            return Some(
                [&question[..2], &[0x83, 0x80, 0, 1, 0, 0, 0, 0, 0, 0], &question[12..end + 4]]
                    .concat(),
            );
        }
        let addresses: Vec<Ipv4Addr> =
            known.split(' ').filter_map(|word| word.parse().ok()).filter(|_| is_v4).collect();
        let head = [0x81, 0x80, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0];
        let mut answer = [&question[..2], &head, &question[12..end + 4]].concat();
        for address in addresses {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(address.octets());
        }
        Some(answer)
    }
}

/// The name in a question, and the offset of its type.
fn looked_up_names(question: &[u8]) -> (String, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] != 0 {
        let length = usize::from(question[at]);
        labels.push(String::from_utf8(question[at + 1..at + 1 + length].to_vec()).unwrap());
        at += 1 + length;
    }
    (labels.join("."), at + 1)
}

pub fn question(name: &str, kind: u8) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, kind, 0, 1]);
    message
}

/// A ClientHello of TLS 1.2 or later.
pub fn client_hello(name: Option<&str>) -> Vec<u8> {
    let sized = |bytes: Vec<u8>| [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
    let entry = |name: &str| sized([&[0][..], &sized(name.into())].concat());
    let extensions = name.map_or(Vec::new(), |name| [&[0, 0][..], &sized(entry(name))].concat());
    let ciphers = sized(vec![0x13, 0x01]);
    let body = [&[3, 3][..], &[7; 32], &[0], &ciphers, &[1, 0], &sized(extensions)].concat();
    let message = [&[1, 0][..], &sized(body)].concat();
    [&[22, 3, 1][..], &sized(message)].concat()
}

/// Closes a stream with a reset.
pub fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
}
