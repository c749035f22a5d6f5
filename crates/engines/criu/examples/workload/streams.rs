//! Programs that talk over sockets.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use crate::PAUSE;

/// Echoes one connection.
pub fn serve(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    println!("listening");
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = [0; 8];
    while stream.read_exact(&mut buffer).is_ok() {
        stream.write_all(&buffer).unwrap();
    }
    println!("closed");
}

/// Asks an echo for ever, each number once.
pub fn ask(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    for number in 0_u64.. {
        stream.write_all(&number.to_ne_bytes()).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_ne_bytes(answer), number);
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Asks an echo until TCP knows how soon that answers, and says something to it when the file `trigger` is there, which it does
/// not await.
pub fn say(address: &str, trigger: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    for _ in 0..50 {
        stream.write_all(&[1; 8]).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
    }
    println!("0");
    wait_for(trigger);
    stream.write_all(&7_u64.to_ne_bytes()).unwrap();
}

/// Takes a stream of numbers in their order, and counts its pieces.
pub fn drink(address: &str) {
    let (mut stream, _) = TcpListener::bind(address).unwrap().accept().unwrap();
    let mut piece = vec![0; PIECE * 8];
    for count in 0_u64.. {
        stream.read_exact(&mut piece).unwrap();
        assert!(piece == numbers(count), "another piece than number {count}");
        println!("{count}");
    }
}

/// Sends a stream of numbers in their order, and counts its pieces. It is slow, so that it never has to wait for its
/// reader, also not for one that is stopped for some time.
pub fn pour(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    for count in 0_u64.. {
        stream.write_all(&numbers(count)).unwrap();
        println!("{count}");
        thread::sleep(PAUSE);
    }
}

/// Numbers in a piece of a stream.
const PIECE: usize = 128;

fn numbers(count: u64) -> Vec<u8> {
    let first = count * PIECE as u64;
    (first..first + PIECE as u64).flat_map(u64::to_ne_bytes).collect()
}

/// Connections between the two processes of [`listen`].
const CONNECTIONS: usize = 64;

/// Takes a number from each of many connections with a child, and counts them. It has so much memory that its child is
/// dumped long after its own ends of the connections.
pub fn listen(trigger: &str) {
    let memory = vec![1_u8; 200 << 20];
    let (mut child, connections) = connected_child("whisper", trigger);
    println!("0");
    for mut connection in connections {
        let mut number = [0; 8];
        connection.read_exact(&mut number).unwrap();
        println!("{}", u64::from_ne_bytes(number));
    }
    child.wait().unwrap();
    std::process::exit(i32::from(memory[0]));
}

/// Sends a number over each connection while the loopback is down, so that the kernel tries again soon after it is up.
pub fn whisper(port: &str, trigger: &str) {
    const BETWEEN: Duration = Duration::from_millis(2);
    let mut connections = connect_to(port);
    wait_for(trigger);
    loopback("down");
    for (connection, number) in connections.iter_mut().zip(2_u64..) {
        connection.write_all(&number.to_ne_bytes()).unwrap();
        thread::sleep(BETWEEN);
    }
    loopback("up");
    println!("1");
    for mut connection in connections {
        assert_eq!(connection.read(&mut [0]).unwrap(), 0, "only the end comes back");
    }
}

/// A child that does `work`, and the connections that it has made.
fn connected_child(work: &str, trigger: &str) -> (Child, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let child = Command::new(std::env::current_exe().unwrap()).args([work, &port, trigger]).spawn().unwrap();
    let connections = (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
    (child, connections)
}

pub fn connect_to(port: &str) -> Vec<TcpStream> {
    let port = port.parse().unwrap();
    (0..CONNECTIONS).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect()
}

pub fn wait_for(file: &str) {
    while !std::fs::exists(file).unwrap() {
        thread::sleep(PAUSE);
    }
}

/// Fills many connections with a child from both ends, and verifies what has come once the file `trigger` is there.
pub fn fill(trigger: &str) {
    let (mut child, connections) = connected_child("fill_back", trigger);
    exchange(connections, trigger);
    println!("1");
    std::process::exit(child.wait().unwrap().code().unwrap());
}

pub fn exchange(mut connections: Vec<TcpStream>, trigger: &str) {
    const FULL: usize = 8;
    let piece: Vec<u8> = (0_u32..1 << 16).flat_map(u32::to_ne_bytes).collect();
    connections.truncate(FULL);
    for connection in &connections {
        connection.set_nonblocking(true).unwrap();
        write_what_fits(connection, &piece);
        connection.shutdown(Shutdown::Write).unwrap();
        connection.set_nonblocking(false).unwrap();
    }
    println!("0");
    wait_for(trigger);
    for mut connection in connections {
        let mut arrived = Vec::new();
        connection.read_to_end(&mut arrived).unwrap();
        assert!(arrived.len() > piece.len(), "only {} bytes", arrived.len());
        assert!(arrived.chunks(piece.len()).all(|found| piece.starts_with(found)), "other bytes");
    }
}

/// Writes a piece again and again until the kernel takes no more.
fn write_what_fits(mut connection: &TcpStream, piece: &[u8]) {
    let mut at = 0;
    loop {
        match connection.write(&piece[at..]) {
            Ok(count) => at = (at + count) % piece.len(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Binds a socket by another name than it gets then.
pub fn rename_socket(path: &str) {
    let before = format!("{path}.new");
    let _listener = UnixListener::bind(&before).unwrap();
    std::fs::rename(before, path).unwrap();
    crate::count(u64::MAX);
}

/// Looks again and again whether it is refused a socket of multipath TCP.
pub fn listen_on_one_path() {
    for number in 0_u64.. {
        // SAFETY: no memory is passed.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP) };
        assert_eq!(socket, -1);
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Closes one end of connection after connection, and reads from the other a while later.
pub fn read_to_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut half_closed = VecDeque::new();
    for number in 0_u64.. {
        let mut closed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (open, _) = listener.accept().unwrap();
        closed.write_all(&number.to_ne_bytes()).unwrap();
        half_closed.push_back((number, open));
        drop(closed);
        if half_closed.len() > CONNECTIONS {
            let (number, mut oldest) = half_closed.pop_front().unwrap();
            let mut arrived = Vec::new();
            oldest.read_to_end(&mut arrived).unwrap();
            assert_eq!(arrived, number.to_ne_bytes());
            println!("{number}");
        }
        thread::sleep(PAUSE);
    }
}

fn loopback(state: &str) {
    assert!(Command::new("ip").args(["link", "set", "lo", state]).status().unwrap().success());
}
