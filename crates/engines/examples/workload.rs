//! Programs that notice if a move loses or repeats anything, for the tests of this crate.

use std::ffi::{CString, OsStr};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(1);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["count", to] => count(to.parse().unwrap()),
        ["flood", lines] => flood(lines.parse().unwrap()),
        ["hold", mebibytes] => hold(mebibytes.parse().unwrap()),
        ["serve", address] => serve(address),
        ["ask", address] => ask(address),
        ["drink", address] => drink(address),
        ["pour", address] => pour(address),
        ["mixed"] => mixed(),
        ["crowd", address] => crowd(address),
        ["reply"] => reply(),
        ["open", path] => open(path),
        ["pin", kind] => pin(kind),
        ["lock", path] => lock(path),
        ["lock_often", path] => lock_often(path),
        ["lock_unnamed", path] => lock_unnamed(path),
        ["name_oddly", path] => name_oddly(path),
        ["delete", path] => delete(path),
        ["await_disks"] => await_disks(),
        ["extend", words] => extend(words),
        ["ignore"] => ignore(),
        ["know_itself"] => know_itself(),
        ["keep_options"] => keep_options(),
        ["keep_scheduling"] => keep_scheduling(),
        ["keep_time"] => keep_time(),
        ["listen", trigger] => listen(trigger),
        ["fill", trigger] => fill(trigger),
        ["fill_back", port, trigger] => exchange(connect_to(port), trigger),
        ["whisper", port, trigger] => whisper(port, trigger),
        _ => panic!("unknown workload {words:?}"),
    }
}

/// Counts slowly; exits with 7.
fn count(to: u64) {
    for number in 0..to {
        println!("{number}");
        thread::sleep(PAUSE);
    }
    std::process::exit(7);
}

/// Writes as fast as it can.
fn flood(lines: u64) {
    let mut out = std::io::stdout().lock();
    for number in 0..lines {
        writeln!(out, "{number:063}").unwrap();
    }
}

/// Fills memory with a pattern, and verifies it for ever.
fn hold(mebibytes: usize) {
    let mut memory: Vec<u64> = (0..mebibytes as u64 * 131_072).map(|n| n.wrapping_mul(0x9e37_79b9)).collect();
    for round in 0_u64.. {
        let at = (round as usize * 509) % memory.len();
        assert_eq!(memory[at], (at as u64).wrapping_mul(0x9e37_79b9));
        memory[at] = (at as u64).wrapping_mul(0x9e37_79b9);
        if round % 1000 == 0 {
            println!("{}", round / 1000);
            thread::sleep(PAUSE);
        }
    }
}

/// Echoes one connection.
fn serve(address: &str) {
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
fn ask(address: &str) {
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

/// Takes a stream of numbers in their order, and counts its pieces.
fn drink(address: &str) {
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
fn pour(address: &str) {
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

/// Asks an echo for ever, beside threads that wait in the kernel and tell if that is interrupted.
fn crowd(address: &str) {
    let (reader, writer) = io::pipe().unwrap();
    thread::spawn(move || wait_for_ever("read", || (&reader).read(&mut [0]).map(|_| ())));
    thread::spawn(|| wait_for_ever("nanosleep", || sleep(Duration::from_millis(7))));
    thread::spawn(|| wait_for_ever("nanosleep", || sleep(Duration::from_secs(60))));
    thread::spawn(|| wait_for_ever("poll", || poll(50)));
    thread::spawn(spin);
    thread::spawn(move || {
        wait_for_ever("write", || {
            thread::sleep(Duration::from_millis(3));
            (&writer).write(&[0]).map(|_| ())
        })
    });
    ask(address);
}

/// Repeats what must not fail but by a move, also where the standard library would try again.
fn wait_for_ever(name: &str, wait: impl Fn() -> io::Result<()>) {
    let host = || std::fs::read_link("/proc/self/ns/net").unwrap();
    loop {
        let before = host();
        if let Err(error) = wait()
            && host() == before
        {
            eprintln!("{name}: {error}");
        }
    }
}

fn sleep(time: Duration) -> io::Result<()> {
    let time =
        libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: `time` is live, and nothing is asked back.
    checked(unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) })
}

fn poll(milliseconds: i32) -> io::Result<()> {
    // SAFETY: no descriptors are passed.
    checked(unsafe { libc::poll(std::ptr::null_mut(), 0, milliseconds) })
}

fn checked(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Computes in registers, general ones and others, and never waits.
fn spin() {
    let expected = (0..100_000).fold((1, 1.0), step);
    loop {
        let found = (0..100_000).fold((1, 1.0), step);
        assert!(found == expected, "registers changed");
        thread::sleep(PAUSE);
    }
}

fn step((whole, real): (u64, f64), round: u64) -> (u64, f64) {
    (whole.wrapping_mul(0x9e37_79b9).rotate_left(7) ^ round, (real * 1.000_1 + round as f64).sqrt())
}

/// Threads that wake each other, a memfd, a child behind pipes: a number goes through all of them.
fn mixed() {
    let (to_thread, from_main) = mpsc::channel::<u64>();
    let (to_main, from_thread) = mpsc::channel::<u64>();
    thread::spawn(move || from_main.into_iter().try_for_each(|number| to_main.send(number)));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("reply")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut ask, mut answer) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut memory = memory_file();
    for number in 0_u64.. {
        to_thread.send(number).unwrap();
        assert_eq!(from_thread.recv().unwrap(), number);
        ask.write_all(&number.to_ne_bytes()).unwrap();
        let mut bytes = [0; 8];
        answer.read_exact(&mut bytes).unwrap();
        memory.seek(SeekFrom::Start(number % 4096 * 8)).unwrap();
        memory.write_all(&bytes).unwrap();
        memory.seek(SeekFrom::Current(-8)).unwrap();
        memory.read_exact(&mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), number);
        println!("{number}");
        thread::sleep(PAUSE);
    }
    child.wait().unwrap();
}

fn memory_file() -> File {
    // SAFETY: the name is a C string, and the descriptor is new.
    unsafe { File::from_raw_fd(libc::memfd_create(c"workload".as_ptr(), 0)) }
}

/// Sends back what comes in.
fn reply() {
    let mut bytes = [0; 8];
    while std::io::stdin().read_exact(&mut bytes).is_ok() {
        std::io::stdout().write_all(&bytes).unwrap();
        std::io::stdout().flush().unwrap();
    }
}

/// Connections between the two processes of [`listen`].
const CONNECTIONS: usize = 64;

/// Takes a number from each of many connections with a child, and counts them. It has so much memory that its child is
/// dumped long after its own ends of the connections.
fn listen(trigger: &str) {
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
fn whisper(port: &str, trigger: &str) {
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

fn connect_to(port: &str) -> Vec<TcpStream> {
    let port = port.parse().unwrap();
    (0..CONNECTIONS).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect()
}

fn wait_for(file: &str) {
    while !std::fs::exists(file).unwrap() {
        thread::sleep(PAUSE);
    }
}

/// Fills many connections with a child from both ends, and verifies what has come once the file `trigger` is there.
fn fill(trigger: &str) {
    let (mut child, connections) = connected_child("fill_back", trigger);
    exchange(connections, trigger);
    println!("1");
    std::process::exit(child.wait().unwrap().code().unwrap());
}

fn exchange(mut connections: Vec<TcpStream>, trigger: &str) {
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

fn loopback(state: &str) {
    assert!(Command::new("ip").args(["link", "set", "lo", state]).status().unwrap().success());
}

/// Keeps a file locked.
fn lock(path: &str) {
    let file = File::open(path).unwrap();
    file.lock().unwrap();
    count(u64::MAX);
}

/// Locks a file for a moment, again and again.
fn lock_often(path: &str) {
    let file = File::open(path).unwrap();
    for number in 0_u64.. {
        file.lock().unwrap();
        thread::sleep(PAUSE);
        file.unlock().unwrap();
        println!("{number}");
        thread::sleep(3 * PAUSE);
    }
}

/// Keeps files locked that have no name, and looks again and again whether they are.
fn lock_unnamed(path: &str) {
    let deleted = File::create_new(path).unwrap();
    std::fs::remove_file(path).unwrap();
    let files = [deleted, memory_file()];
    files.iter().for_each(|file| file.lock().unwrap());
    for number in 0_u64.. {
        for file in &files {
            let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
        }
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Works in a directory whose name is no text, has it open and a file in it mapped, and is called like it.
fn name_oddly(path: &str) {
    let odd = OsStr::from_bytes(b"\xff");
    let directory = Path::new(path).join(odd);
    std::fs::create_dir(&directory).unwrap();
    std::env::set_current_dir(&directory).unwrap();
    std::fs::write(odd, [7]).unwrap();
    let _open = File::open(&directory).unwrap();
    let file = File::open(odd).unwrap();
    // SAFETY: a new mapping of an open file's first page.
    let mapped = unsafe {
        let (none, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE);
        libc::mmap(none, 1, libc::PROT_READ, flags, file.as_raw_fd(), 0).cast::<u8>()
    };
    drop(file);
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"\xff".as_ptr()) };
    for number in 0_u64.. {
        // SAFETY: the mapping stays, and nobody cuts the file off.
        assert_eq!(unsafe { mapped.read_volatile() }, 7);
        assert!(std::fs::exists(odd).unwrap());
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Deletes a file that has a second name, `PATH.2`, and goes on to use it.
fn delete(path: &str) {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(8).unwrap();
    std::fs::hard_link(path, format!("{path}.2")).unwrap();
    std::fs::remove_file(path).unwrap();
    // SAFETY: a new mapping of an open file's first page.
    let mapped = unsafe {
        let (none, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        libc::mmap(none, 8, access, libc::MAP_SHARED, file.as_raw_fd(), 0).cast::<u64>()
    };
    for number in 0_u64.. {
        // SAFETY: the mapping stays, and nobody cuts the file off.
        unsafe { mapped.write_volatile(number) };
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), number);
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Has a ring for asynchronous requests to disks, and looks again and again whether it can be asked.
fn await_disks() {
    let mut ring: libc::c_ulong = 0;
    // SAFETY: the kernel writes the ring's address.
    assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut ring) }, 0);
    for number in 0_u64.. {
        // SAFETY: no event is asked for, and so none is written.
        let events = unsafe { libc::syscall(libc::SYS_io_getevents, ring, 0, 0, 0, 0) };
        assert_eq!(events, 0, "{}", io::Error::last_os_error());
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Changes its network by a command of `ip`.
fn extend(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success());
    count(u64::MAX);
}

/// Listens, and accepts nothing.
fn ignore() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _ignored = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    count(u64::MAX);
}

/// Looks up by a descriptor that it keeps open where its own memory is.
fn know_itself() {
    let mut maps = File::open("/proc/self/maps").unwrap();
    let mine = Box::new(0_u8);
    let address = (&raw const *mine).addr();
    for number in 0_u64.. {
        let mut text = String::new();
        maps.seek(SeekFrom::Start(0)).unwrap();
        maps.read_to_string(&mut text).unwrap();
        assert!(text.lines().any(|line| holds(line, address)), "{address:x} is not in {text}");
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

/// Whether a line of `/proc/self/maps` is of the mapping with this address.
fn holds(line: &str, address: usize) -> bool {
    let number = |text| usize::from_str_radix(text, 16).unwrap();
    let (range, _) = line.split_once(' ').unwrap();
    let (from, to) = range.split_once('-').unwrap();
    (number(from)..number(to)).contains(&address)
}

/// Level, name and value of an option.
type SocketOption = (libc::c_int, libc::c_int, libc::c_int);

/// Looks again and again whether its sockets have the options that it has set.
fn keep_options() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _accepted = listener.accept().unwrap();
    let datagrams = UdpSocket::bind("[::]:0").unwrap();
    let of_listener =
        [(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 7), (libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 5)];
    let of_stream = [
        (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 300_000),
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 4096),
        (libc::IPPROTO_IP, libc::IP_TTL, 44),
    ];
    let of_datagrams = [
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0x20),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 43),
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, 7),
    ];
    let sockets: [(RawFd, &[SocketOption]); 3] = [
        (listener.as_raw_fd(), &of_listener),
        (stream.as_raw_fd(), &of_stream),
        (datagrams.as_raw_fd(), &of_datagrams),
    ];
    sockets
        .iter()
        .for_each(|(socket, options)| options.iter().for_each(|option| set_option(*socket, *option)));
    set_congestion(&stream, b"reno");
    for number in 0_u64.. {
        for (socket, options) in sockets {
            options.iter().for_each(|option| assert_eq!(get_option(socket, *option), option.2, "{option:?}"));
        }
        assert!(congestion(&stream).starts_with(b"reno\0"));
        println!("{number}");
        thread::sleep(PAUSE);
    }
}

fn set_option(socket: RawFd, (level, name, value): SocketOption) {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value is live and as long as said.
    let result = unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), length) };
    assert_eq!(result, 0, "{level} {name}: {}", io::Error::last_os_error());
}

fn get_option(socket: RawFd, (level, name, _): SocketOption) -> libc::c_int {
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`.
    let result = unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut length) };
    assert_eq!(result, 0, "{level} {name}: {}", io::Error::last_os_error());
    value
}

fn set_congestion(stream: &TcpStream, name: &[u8]) {
    let (socket, length) = (stream.as_raw_fd(), name.len() as libc::socklen_t);
    // SAFETY: the name is live and as long as said.
    let result = unsafe {
        libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_ptr().cast(), length)
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

fn congestion(stream: &TcpStream) -> [u8; 16] {
    let mut name = [0; 16];
    let (socket, mut length) = (stream.as_raw_fd(), 16);
    // SAFETY: the kernel writes at most `length` bytes into `name`.
    let result = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    name
}

/// How a thread is scheduled.
#[derive(Debug, PartialEq)]
struct Scheduling {
    processors: Vec<usize>,
    io_priority: libc::c_long,
    timer_slack: libc::c_int,
}

impl Scheduling {
    const ONE_THREAD: libc::c_int = 1;

    /// That of this thread.
    fn present() -> Self {
        // SAFETY: all-zero is a valid set of processors.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is live, writable and as long as said.
        checked(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }).unwrap();
        // SAFETY: the numbers are of the set.
        let has = |number: &usize| unsafe { libc::CPU_ISSET(*number, &set) };
        let processors = (0..libc::CPU_SETSIZE as usize).filter(has).collect();
        // SAFETY: no memory is passed.
        let io_priority = unsafe { libc::syscall(libc::SYS_ioprio_get, Self::ONE_THREAD, 0) };
        // SAFETY: no memory is passed.
        let timer_slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        Self { processors, io_priority, timer_slack }
    }

    /// Makes it that of this thread.
    fn set(&self) {
        // SAFETY: all-zero is a valid set of processors.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for number in &self.processors {
            // SAFETY: the number is of the set.
            unsafe { libc::CPU_SET(*number, &mut set) };
        }
        // SAFETY: `set` is live and as long as said.
        checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).unwrap();
        // SAFETY: no memory is passed.
        let set = unsafe { libc::syscall(libc::SYS_ioprio_set, Self::ONE_THREAD, 0, self.io_priority) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        // SAFETY: no memory is passed.
        checked(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, libc::c_long::from(self.timer_slack)) })
            .unwrap();
        assert_eq!(Self::present(), *self);
    }
}

/// Looks again and again whether its threads are scheduled as they have asked for, or as they were before.
fn keep_scheduling() {
    const LEAST: libc::c_long = 2 << 13 | 7;
    const IDLE: libc::c_long = 3 << 13;
    let all = Scheduling::present().processors;
    let (first, last) = (vec![all[0]], vec![*all.last().unwrap()]);
    let child = Scheduling { processors: last, io_priority: IDLE, timer_slack: 77_000 };
    let main = Scheduling { processors: first, io_priority: LEAST, timer_slack: 123_456 };
    let before = Scheduling::present();
    thread::spawn(move || {
        loop {
            expect_scheduling(&before);
        }
    });
    thread::spawn(move || {
        child.set();
        loop {
            expect_scheduling(&child);
        }
    });
    main.set();
    for number in 0_u64.. {
        expect_scheduling(&main);
        println!("{number}");
    }
}

fn expect_scheduling(expected: &Scheduling) {
    let present = Scheduling::present();
    if present != *expected {
        eprintln!("{present:?} instead of {expected:?}");
    }
    thread::sleep(PAUSE);
}

/// How often the signals of [`keep_time`] have come: `SIGALRM` and `SIGUSR1`.
static SIGNALS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

extern "C" fn count_signal(signal: libc::c_int) {
    SIGNALS[usize::from(signal == libc::SIGUSR1)].fetch_add(1, Ordering::Relaxed);
}

/// Counts the rounds in which each of its periodic timers has expired; says which one does not any more, and if a timer for
/// a point in time expires before.
fn keep_time() {
    const SIGNAL_PERIOD: libc::c_long = 2_000_000;
    const SILENCE: Duration = Duration::from_secs(3);
    let timers = [1_000_000, 5_000_000, 20_000_000].map(timerfd);
    let epoll = epoll_of(&timers);
    for signal in [libc::SIGALRM, libc::SIGUSR1] {
        // SAFETY: the handler only adds to an atomic.
        unsafe { libc::signal(signal, count_signal as *const () as libc::sighandler_t) };
    }
    start_itimer(SIGNAL_PERIOD);
    start_posix_timer(SIGNAL_PERIOD);
    let mut due = Due::soon();
    let stopped =
        started_timerfd(0, &libc::itimerspec { it_value: periodic(0).it_value, ..periodic(7_000_000) });
    for number in 0_u64.. {
        let (mut expired, begin) = ([0; 5], Instant::now());
        SIGNALS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        while expired.contains(&0) {
            wait_for_any(&epoll);
            for (count, timer) in expired.iter_mut().zip(&timers) {
                *count += ticks(timer);
            }
            for (count, signals) in expired[timers.len()..].iter_mut().zip(&SIGNALS) {
                *count = signals.load(Ordering::Relaxed);
            }
            assert_eq!(ticks(&stopped), 0);
            if ticks(&due.timer) > 0 {
                assert!(monotonic() >= due.at, "{} ns early", due.at - monotonic());
                due = Due::soon();
            }
            assert!(begin.elapsed() < SILENCE, "1, 5, 20 ms, SIGALRM, SIGUSR1: {expired:?}");
        }
        println!("{number}");
    }
}

fn periodic(nanoseconds: libc::c_long) -> libc::itimerspec {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    libc::itimerspec { it_interval: time, it_value: time }
}

fn timerfd(nanoseconds: libc::c_long) -> File {
    started_timerfd(0, &periodic(nanoseconds))
}

fn started_timerfd(flags: libc::c_int, times: &libc::itimerspec) -> File {
    // SAFETY: no memory is passed.
    let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK) };
    // SAFETY: the times are live, and the former ones are not asked for.
    checked(unsafe { libc::timerfd_settime(descriptor, flags, times, std::ptr::null_mut()) }).unwrap();
    // SAFETY: the kernel has just made it for us.
    unsafe { File::from_raw_fd(descriptor) }
}

/// A timer for a point in time.
struct Due {
    timer: File,
    /// In nanoseconds of the monotonic clock.
    at: libc::c_long,
}

impl Due {
    fn soon() -> Self {
        const SECOND: libc::c_long = 1_000_000_000;
        let at = monotonic() + SECOND / 3;
        let mut times = periodic(0);
        times.it_value = libc::timespec { tv_sec: at / SECOND, tv_nsec: at % SECOND };
        Self { timer: started_timerfd(libc::TFD_TIMER_ABSTIME, &times), at }
    }
}

/// The monotonic clock in nanoseconds.
fn monotonic() -> libc::c_long {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live and writable.
    checked(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) }).unwrap();
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn start_itimer(nanoseconds: libc::c_long) {
    let time = libc::timeval { tv_sec: 0, tv_usec: nanoseconds / 1000 };
    let times = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the times are live, and the former ones are not asked for.
    checked(unsafe { libc::setitimer(libc::ITIMER_REAL, &times, std::ptr::null_mut()) }).unwrap();
}

fn start_posix_timer(nanoseconds: libc::c_long) {
    // SAFETY: all-zero is a valid sigevent, and a valid timer_t.
    let (mut event, mut timer): (libc::sigevent, libc::timer_t) = unsafe { std::mem::zeroed() };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGUSR1);
    // SAFETY: `event` is live, and `timer` live and writable.
    checked(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) }).unwrap();
    // SAFETY: the kernel has just made the timer; the times are live, and the former ones are not asked for.
    checked(unsafe { libc::timer_settime(timer, 0, &periodic(nanoseconds), std::ptr::null_mut()) }).unwrap();
}

fn epoll_of(files: &[File]) -> OwnedFd {
    // SAFETY: no memory is passed.
    let descriptor = unsafe { libc::epoll_create1(0) };
    assert_ne!(descriptor, -1, "{}", io::Error::last_os_error());
    // SAFETY: the kernel has just made it for us.
    let epoll = unsafe { OwnedFd::from_raw_fd(descriptor) };
    for file in files {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` is live.
        checked(unsafe {
            libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, file.as_raw_fd(), &raw mut event)
        })
        .unwrap();
    }
    epoll
}

/// Waits until one of its files can be read, or for a signal, or for a moment.
fn wait_for_any(epoll: &OwnedFd) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for the one event that is asked for.
    unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 100) };
}

/// How often a timer has expired since this was asked the last time.
fn ticks(mut timer: &File) -> u64 {
    let mut ticks = [0; 8];
    match timer.read(&mut ticks) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        read => {
            assert_eq!(read.unwrap(), ticks.len());
            u64::from_ne_bytes(ticks)
        }
    }
}

/// Has something that cannot move.
fn pin(kind: &str) {
    match kind {
        "join" => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::LOCALHOST).unwrap();
            keep(socket);
        }
        "urge" => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            // SAFETY: one byte is sent from live memory.
            let sent = unsafe { libc::send(near.as_raw_fd(), [1_u8].as_ptr().cast(), 1, libc::MSG_OOB) };
            assert_eq!(sent, 1);
            keep((near, far));
        }
        "queue" => {
            let name = CString::new(format!("/workload-{}", std::process::id())).unwrap();
            let none = std::ptr::null_mut::<libc::mq_attr>();
            // SAFETY: the name is a live C string; no attributes are passed.
            let queue = unsafe { libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDONLY, 0o600, none) };
            // SAFETY: the name is a live C string.
            unsafe { libc::mq_unlink(name.as_ptr()) };
            assert_ne!(queue, -1);
            count(u64::MAX);
        }
        "semaphores" => {
            // SAFETY: no memory is passed but one live operation.
            let done = unsafe {
                let set = libc::semget(libc::IPC_PRIVATE, 2, 0o600);
                libc::semop(set, &mut libc::sembuf { sem_num: 1, sem_op: 1, sem_flg: 0 }, 1)
            };
            assert_eq!(done, 0, "{}", io::Error::last_os_error());
            count(u64::MAX);
        }
        "messages" => {
            let message: [libc::c_long; 2] = [1, 2];
            // SAFETY: a type and a live message of the length given.
            let done = unsafe {
                let queue = libc::msgget(libc::IPC_PRIVATE, 0o600);
                libc::msgsnd(queue, message.as_ptr().cast(), size_of::<libc::c_long>(), 0)
            };
            assert_eq!(done, 0, "{}", io::Error::last_os_error());
            count(u64::MAX);
        }
        "segment" => {
            // SAFETY: no memory is passed.
            assert_ne!(unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) }, -1);
            count(u64::MAX);
        }
        "unshare" => {
            // SAFETY: no memory is passed.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            count(u64::MAX);
        }
        "clock" => {
            // SAFETY: no memory is passed.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWTIME) }, 0);
            let program = std::env::current_exe().unwrap();
            Command::new(program).args(["count", "1000000000"]).status().unwrap();
        }
        "vfork" => {
            // SAFETY: as fork(), but for the wait; the child has no other threads, and needs none.
            unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0) };
            count(u64::MAX);
        }
        "namespace" => keep(File::open("/proc/self/ns/net").unwrap()),
        "pipes" => {
            let unlimited = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: the limit is live.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const unlimited) }, 0);
            keep((0..1025).map(|_| io::pipe().unwrap()).collect::<Vec<_>>());
        }
        "cork" => {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            set_option(socket.as_raw_fd(), (libc::IPPROTO_UDP, libc::UDP_CORK, 1));
            keep(socket);
        }
        "answer" => {
            // SAFETY: the descriptor is new.
            let socket = unsafe {
                OwnedFd::from_raw_fd(libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE))
            };
            let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
            // Its length, kind, number and sender, and for which family it asks.
            let request = [20, i32::from(libc::RTM_GETLINK) | flags << 16, 1, 0, 0];
            // SAFETY: the request is live and as long as said.
            let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), 20, 0) };
            assert_eq!(sent, 20, "{}", io::Error::last_os_error());
            keep(socket);
        }
        "ping" => {
            std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
            // SAFETY: no memory is passed.
            let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP) };
            assert_ne!(socket, -1, "{}", io::Error::last_os_error());
            count(u64::MAX);
        }
        _ => panic!("unknown {kind}"),
    }
}

/// Keeps what is given.
fn keep<T>(_kept: T) {
    count(u64::MAX);
}

/// Keeps a file open.
fn open(path: &str) {
    let _file = File::options().read(true).write(true).open(path).unwrap();
    count(u64::MAX);
}
