//! Messages that are decoded as a whole. A decoded one is encoded again, and must mean the same.

use std::fmt::Debug;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fabric::attach::{self, OutputStream, Role, ToNode, ToProcess, Transport};
use fabric::directory::{Answer, Entry, Request};
use fabric::link::LinkRequest;
use fabric::session::{End, FromSession, Order, SessionId, State, ToSession, Word};
use fabric::{Epoch, FabricId, NetworkKind, ProcessId, Vid};
use instance::{
    Blueprint, Carried, Chunk, ImageFile, InstanceName, InstanceSpec, Network, Output, Program, Region,
    Workload,
};
use moves::entry::{Entry as NodeEntry, NodeRecord};
use moves::journal::{MoveRecord, Record};
use moves::{HostName, MoveId};
use rpc::datagrams::{LONGEST, Train, Trains};
use rpc::enrol;
use rpc::token::{Fingerprint, JoinToken, Secret};
use rpc::wire::{
    FromCoordinator, FromNode, ImageMessage, LinkAnswer, LinkQuestion, Manifest, MemoryAnswer,
    MemoryQuestion, Opening, Received,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use softhca::wire::{self, Export, HEADER, Header, Hello, Opcode, flag};
use verbs::{HandleKind, Translation};

use crate::input::Input;

/// Frames of links: headers, and the payloads with a structure.
pub fn frame(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => header(input.rest()),
        1 => {
            if let Ok(hello) = Hello::decode(input.rest()) {
                assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            }
        }
        2 => {
            if let Ok(export) = Export::decode(input.rest()) {
                assert_eq!(Export::decode(&export.encode()), Ok(export));
            }
        }
        _ => translations(input.rest()),
    }
}

fn header(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HEADER>() else { return };
    let Ok(header) = Header::decode(bytes) else { return };
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    if header.is_request() && header.is_last() {
        assert!(header.offset <= header.total);
    }
}

fn translations(bytes: &[u8]) {
    let Ok(lines) = wire::decode_translations(bytes) else { return };
    let Ok(lines) = lines.collect::<Result<Vec<_>, _>>() else { return };
    let mut again = Vec::new();
    wire::encode_translations(&lines, &mut again);
    assert_eq!(again, bytes);
}

/// A header of each kind, and a payload of each that has one.
#[must_use]
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..=u8::MAX)
        .filter_map(Opcode::from_wire)
        .map(|opcode| Header { dst_qpn: 0x1_0001, src_qpn: 0x1_0002, msn: 7, ..Header::new(opcode) })
        .chain([
            Header { length: 8, total: 8, flags: flag::SOLICITED, ..Header::new(Opcode::Send) },
            Header { length: 16, total: 16, va: 64, rkey: 0x101, ..Header::new(Opcode::FetchAdd) },
            Header { length: 20, total: 20, flags: flag::GROUP, ..Header::new(Opcode::Datagram) },
        ])
        .map(|header| [&[0], &header.encode()[..]].concat())
        .collect();
    let hello = Hello { process: process(), fabric: FabricId(7), epoch: Epoch(1), incarnation: 9 };
    seeds.push([&[1], &hello.encode()[..]].concat());
    let export = Export { memory: 1, offset: 4096, length: 8192, rights: 7, count: 1 };
    seeds.push([&[2], &export.encode()[..]].concat());
    let kinds = [HandleKind::QueuePair, HandleKind::MemoryKey, HandleKind::SharedReceiveQueue];
    let lines = kinds.map(|kind| Translation { kind, virtual_handle: 0x101, real: 0x202 });
    let mut payload = vec![3];
    wire::encode_translations(&lines, &mut payload);
    seeds.push(payload);
    seeds
}

/// Between a process and its node.
pub fn attach(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.coin() {
        same::<ToProcess>(input.rest());
    } else {
        match same::<ToNode>(input.rest()) {
            Some(ToNode::Directory { request, .. }) => drop(request.is_within_limits()),
            Some(ToNode::Sessions(word)) => drop(word.is_within_limits()),
            _ => {}
        }
    }
}

/// Decodes, encodes and decodes again.
fn same<M: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<M> {
    let message: M = attach::decode(bytes).ok()?;
    let again = attach::decode(&attach::encode(&message)).ok();
    assert_eq!(again.as_ref(), Some(&message));
    Some(message)
}

fn tagged<M: Serialize>(tag: u8, message: &M) -> Vec<u8> {
    [&[tag], attach::encode(message).as_slice()].concat()
}

fn vid() -> Vid {
    Vid::new(3).expect("a VID")
}

fn process() -> ProcessId {
    ProcessId { vid: vid(), index: 2 }
}

/// Messages of both sides.
#[must_use]
pub fn attach_seeds() -> Vec<Vec<u8>> {
    let (peer, epoch, id) = (process(), Epoch(1), SessionId(9));
    let publish = Request::Publish { key: b"cm".to_vec(), value: vec![1; 8], exclusive: true };
    let from_process = [
        ToNode::Hello { version: attach::VERSION, role: Role::Verbs, resume: Some(peer) },
        ToNode::OpenLink { peer },
        ToNode::Suspended { elapsed_us: 9, queue_pairs: 1, memory_regions: 2, active_peers: vec![peer] },
        ToNode::Output { stream: OutputStream::Stderr, bytes: b"text".to_vec() },
        ToNode::Directory { number: 1, request: publish },
        ToNode::Sessions(Word::All(vec![(id, State { input: 3, signals: 1 })])),
        ToNode::Sessions(Word::One(id, FromSession::Ended { end: End::Exited(0), lengths: [4, 0] })),
    ];
    let found = Answer::Found(vec![Entry { process: peer, value: vec![2; 8] }]);
    let from_node = [
        ToProcess::Welcome { process: peer, fabric: FabricId(7), epoch },
        ToProcess::Refused { reason: "no".into() },
        ToProcess::LinkUp { peer, epoch, transport: Transport::SharedMemory },
        ToProcess::Directory { number: 1, answer: found },
        ToProcess::Session { id, message: ToSession::Open(Order::default()) },
        ToProcess::Session { id, message: ToSession::Input { offset: 1, bytes: b"text".to_vec() } },
    ];
    let seeds = from_process.iter().map(|message| tagged(0, message));
    seeds.chain(from_node.iter().map(|message| tagged(1, message))).collect()
}

/// Between nodes, and between nodes and the coordinator: frames of a stream, and their content.
pub fn rpc(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.below(12);
    let Some(frame) = first_frame(input.rest()) else { return };
    match kind {
        0 => drop(same::<FromNode>(&frame)),
        1 => drop(same::<FromCoordinator>(&frame)),
        2 => drop(same::<Opening>(&frame)),
        3 => drop(same::<LinkQuestion>(&frame)),
        4 => drop(same::<LinkAnswer>(&frame)),
        5 => drop(same::<Received>(&frame)),
        6 => {
            if let Ok(blueprint) = Blueprint::decode(&frame) {
                let again = blueprint.encode().expect("a decoded message can be encoded");
                assert_eq!(Blueprint::decode(&again), Ok(blueprint));
            }
        }
        8 => drop(same::<enrol::Request>(&frame)),
        9 => drop(same::<enrol::Answer>(&frame)),
        10 => drop(same::<MemoryQuestion>(&frame)),
        11 => drop(same::<MemoryAnswer>(&frame)),
        _ => {
            if let Ok(ImageMessage::Rest(manifest)) = rpc::frame::decode(&frame) {
                go_on_with(manifest.carried.output);
            }
        }
    }
}

/// The frame that a stream with these bytes begins with.
fn first_frame(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    // All that there is to read is there.
    let read = pin!(rpc::frame::read(&mut bytes, &mut buffer)).poll(&mut context);
    matches!(read, Poll::Ready(Ok(true))).then_some(buffer)
}

/// The new host's handling of output that arrived with an instance.
fn go_on_with(mut output: Output) {
    let now = Instant::now();
    let _ = output.has_room(now);
    output.follow(7, output.end(), now);
    output.push(Chunk { stream: OutputStream::Stdout, bytes: b"more".to_vec() });
    let (_, next) = output.read(0, 1000);
    let _ = output.read(next, 1000);
}

fn framed<M: Serialize>(tag: u8, message: &M) -> Vec<u8> {
    framed_bytes(tag, &attach::encode(message))
}

fn framed_bytes(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[tag], &(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

/// Messages of all kinds.
///
/// # Panics
/// Never.
#[must_use]
pub fn rpc_seeds() -> Vec<Vec<u8>> {
    let request = LinkRequest { fabric: FabricId(7), from: process(), epoch: Epoch(1), to: process() };
    let hello = FromNode::Hello {
        version: rpc::wire::VERSION,
        address: "10.0.0.1:7".parse().expect("an address"),
        here: vec![vid()],
        runs_instances: true,
    };
    let mut output = Output::default();
    output.push(Chunk { stream: OutputStream::Stdout, bytes: b"text".to_vec() });
    let carried = Carried { output, exit: None, ..Carried::default() };
    let image = ImageFile { name: "inventory.img".into(), size: 9 };
    let images = vec![image];
    vec![
        framed(0, &hello),
        framed(0, &FromNode::Processes { vid: vid(), indexes: [1, 2].into() }),
        framed(0, &FromNode::OutOfMemory { vid: vid(), processes: 1, limit: Some(64 << 20) }),
        framed(1, &FromCoordinator::Refused { reason: "no".into() }),
        framed(2, &Opening::Images { id: MoveId(3), vid: vid() }),
        framed(2, &Opening::Channel { id: MoveId(3), vid: vid(), name: "ram".into() }),
        framed(2, &Opening::Memory { id: MoveId(3), vid: vid() }),
        framed(3, &LinkQuestion::Open { request, nonce: [7; 16] }),
        framed(4, &LinkAnswer::Open { epoch: Epoch(1), data_port: 9 }),
        framed(5, &Received::Whole { digest: [1; 32] }),
        framed(5, &Received::Refused { reason: "no room\nmake some".into() }),
        framed_bytes(6, &blueprint().encode().expect("a blueprint")),
        framed(7, &ImageMessage::Begin),
        framed(7, &ImageMessage::Pages { region: Region(7), runs: vec![(0x1000, 2), (0x9000, 1)] }),
        framed(7, &ImageMessage::Layout { region: Region(9), runs: vec![(0, 3)] }),
        framed(7, &ImageMessage::Left { region: Region(7), runs: vec![(0x9000, 1)] }),
        framed(7, &ImageMessage::Rest(Manifest { carried, images })),
        framed(
            8,
            &enrol::Request { version: enrol::VERSION, secret: [7; 16], signing_request: vec![0x30, 0] },
        ),
        framed(9, &enrol::Answer::Refused { reason: "taken\nchoose another".into() }),
        framed(10, &MemoryQuestion { region: Region(7), address: 0x9000, pages: 1, ahead: true }),
        framed(11, &MemoryAnswer::Pages { region: Region(7), address: 0x9000 }),
        framed(11, &MemoryAnswer::Lost),
    ]
}

fn blueprint() -> Blueprint {
    let program = Program { environment: vec![("PATH".into(), "/bin".into())], ..Program::new(["true"]) };
    let spec = InstanceSpec {
        name: InstanceName::new("job").expect("a name"),
        network: Network { mac: [2; 6], address: Ipv4Addr::new(10, 77, 1, 1), prefix: 16, mtu: 1500 },
        network_kind: NetworkKind::Overlay,
        workload: Workload::Process(program),
    };
    Blueprint { fabric: FabricId(7), spec }
}

/// So much of a connection is read in a run: more than is there at a time.
const MOST_READ: usize = 160 * 1024;

/// Datagrams over a connection, which is read in pieces as they come. Any cut gives the same frames.
///
/// # Panics
/// If it is not.
pub fn trains(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    // Small pieces cut everything, large ones fill the buffer.
    let scale = input.pick(&[1, 16, 256, 4096]);
    let pieces: Vec<usize> = input.bytes().iter().map(|piece| (usize::from(*piece) + 1) * scale).collect();
    let stretch = usize::from(input.byte()) + 1;
    let mut read = input.rest().repeat(stretch);
    read.truncate(MOST_READ);
    assert_eq!(understand(&read, &pieces), expected(&read));
}

/// Trains; some end in the middle of one, or are followed by bytes that are not a train.
type Understood = (Vec<(usize, Vec<u8>)>, Result<bool, ErrorKind>);

/// The message in `bytes`.
fn expected(mut bytes: &[u8]) -> Understood {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        if length != 0 && !(3..=2 + LONGEST).contains(&length) {
            return (found, Err(ErrorKind::InvalidData));
        }
        let Some((frame, rest)) = rest.split_at_checked(length) else { return (found, Ok(true)) };
        if let Some((each, datagrams)) = frame.split_first_chunk() {
            let each = u16::from_le_bytes(*each).into();
            if each == 0 {
                return (found, Err(ErrorKind::InvalidData));
            }
            found.push((each, datagrams.to_vec()));
        }
        bytes = rest;
    }
    (found, Ok(!bytes.is_empty()))
}

/// The trains in `bytes` that are read in `pieces`, over and over, and how it ends.
fn understand(mut bytes: &[u8], pieces: &[usize]) -> Understood {
    let (mut trains, mut found) = (Trains::new(), Vec::new());
    let mut pieces = pieces.iter().chain([&1]).cycle();
    loop {
        match trains.next() {
            Ok(Some(Train { datagrams, each })) => found.push((each, datagrams.to_vec())),
            Ok(None) if bytes.is_empty() => return (found, Ok(trains.is_cut())),
            Ok(None) => {
                let room = trains.room();
                assert!(!room.is_empty());
                let length = pieces.next().map_or(1, |piece| *piece).min(room.len()).min(bytes.len());
                room[..length].copy_from_slice(&bytes[..length]);
                trains.filled(length);
                bytes = &bytes[length..];
            }
            Err(error) => return (found, Err(error.kind())),
        }
    }
}

/// Trains, nothing, and bytes that are not a frame, in pieces of several sizes.
#[must_use]
pub fn trains_seeds() -> Vec<Vec<u8>> {
    let train = |each: u16, datagrams: &[u8]| {
        let length = (2 + datagrams.len()) as u32;
        [&length.to_le_bytes()[..], &each.to_le_bytes(), datagrams].concat()
    };
    let nothing = 0_u32.to_le_bytes().to_vec();
    let too_long = (LONGEST as u32 + 3).to_le_bytes().to_vec();
    let streams = [
        [train(100, &[7; 250]), nothing.clone(), train(9, &[8; 9])].concat(),
        [train(1400, &[7; 1400]), train(0, &[1])].concat(),
        [nothing, too_long].concat(),
        train(60_000, &[9; LONGEST]),
        train(1, &[1; 40])[..20].to_vec(),
    ];
    let pieces = [&[0, 2, 0, 6, 0][..], &[1, 1, 255, 3], &[3, 3, 20, 0, 255, 1], &[2, 0, 2]];
    let script = |pieces: &[u8], stream: &[u8]| [pieces, stream].concat();
    streams.iter().flat_map(|stream| pieces.map(|pieces| script(pieces, stream))).collect()
}

/// The content of stores: we wrote it, and the disk may have changed it.
pub fn record(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => drop(same::<NodeEntry>(input.rest())),
        1 => drop(same::<MoveRecord>(input.rest())),
        2 => drop(same::<store::EndedInstance>(input.rest())),
        _ => drop(same::<Record>(input.rest())),
    }
}

/// Records of all kinds.
///
/// # Panics
/// Never.
#[must_use]
pub fn record_seeds() -> Vec<Vec<u8>> {
    let host = |name: &str| HostName::new(name).expect("a host's name");
    let role = moves::entry::Role::Source { id: MoveId(4), destination: host("h2").into() };
    let NodeRecord::Set { entry, .. } =
        (NodeRecord::Set { vid: vid(), entry: NodeEntry { epoch: Epoch(2), role } })
    else {
        return Vec::new();
    };
    let moved = MoveRecord {
        vid: vid(),
        source: host("h1").into(),
        destination: host("h2").into(),
        epoch: Epoch(1),
        dry_run: false,
        post_copy: true,
        stage: moves::journal::Stage::Began,
    };
    vec![tagged(0, &entry), tagged(1, &moved)]
}

/// The text of a join token, as a user gives it. A valid one is written the same way again.
pub fn token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(token.to_string(), text);
    }
}

/// Tokens of both kinds of addresses.
#[must_use]
pub fn token_seeds() -> Vec<Vec<u8>> {
    let token = |coordinator: SocketAddr| {
        let (authority, secret) = (Fingerprint::of(b"authority"), Secret([7; 16]));
        JoinToken { coordinator, authority, secret }.to_string().into_bytes()
    };
    vec![token((Ipv4Addr::LOCALHOST, 7700).into()), token((Ipv6Addr::LOCALHOST, 7700).into())]
}

/// Lines of the command line and the coordinator.
pub fn api(bytes: &[u8]) {
    let Ok(line) = std::str::from_utf8(bytes) else { return };
    if let Ok(request) = api::from_line::<api::Request>(line) {
        let again = api::to_line(&request).map(|line| api::from_line(&line).ok());
        assert_eq!(again.ok(), Some(Some(request)));
    }
    let _ = api::from_line::<api::Event>(line);
}

/// Lines of both.
#[must_use]
pub fn api_seeds() -> Vec<Vec<u8>> {
    let name = || "a".to_owned();
    let requests = [
        api::Request::List,
        api::Request::Move(api::MoveRequest {
            name: name(),
            host: "h2".into(),
            dry_run: true,
            force: false,
            post_copy: false,
            within_s: None,
        }),
        api::Request::Logs { name: name(), follow: true, after: None },
    ];
    let failed = api::Event::Failed(api::Failure::new("what", "the way out"));
    let lines = requests.iter().map(api::to_line).chain([api::to_line(&failed)]);
    lines.flatten().map(String::into_bytes).collect()
}

/// Replies of CRIU.
pub fn criu(bytes: &[u8]) {
    engine_criu::foreign::criu_packet(bytes);
}

/// Packets that CRIU has sent.
#[must_use]
pub fn criu_seeds() -> Vec<Vec<u8>> {
    vec![
        b"\x08\x06\x10\x01\x2a\x10\x0a\x0bpost-restor\x10\xdb\x63".to_vec(),
        b"\x08\x02\x10\x00\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x38\x38".to_vec(),
    ]
}
