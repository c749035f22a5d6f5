//! Programs that have something that cannot move.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use crate::options::set_option;
use crate::{checked, count};

/// Of `linux/sched.h`.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// Has something of this kind.
pub fn pin(kind: &str) {
    match kind {
        "join" => keep(member_of_a_group()),
        "urge" => keep(connection_with_urgent_data()),
        "queue" => keep(open_message_queue()),
        "semaphores" => use_semaphores(),
        "messages" => send_message(),
        "segment" => make_segment(),
        "unshare" => unshare(libc::CLONE_NEWNET),
        "clock" => count_by_another_clock(),
        "vfork" => wait_for_a_child(),
        "namespace" => keep(File::open("/proc/self/ns/net").unwrap()),
        "pipes" => keep(many_pipes()),
        "cork" => keep(corked_socket()),
        "answer" => keep(socket_with_an_answer()),
        "ping" => keep(ping_socket()),
        "orphan" => keep(peer_of_an_orphan()),
        "semaphore" => keep(semaphore_of_events()),
        "packets" => keep(pipe_of_packets()),
        "descriptors" => keep(socket_with_descriptors()),
        "credentials" => keep(socket_with_credentials()),
        "memory" => run_from_memory(),
        "left_behind" => map_left_code(),
        "unaccepted" => keep(connection_to_accept()),
        "sealed" => map_sealed_memory(),
        "deadline" => be_scheduled_by_deadlines(),
        "huge" => keep(huge_memory()),
        "thread" => keep(pidfd_of_a_thread()),
        "children" => unshare(libc::CLONE_NEWPID),
        "time" => unshare(CLONE_NEWTIME),
        "first_thread" => end_first_thread(),
        "directory" => make_child_with_one_directory(),
        "full" => keep(as_many_files_as_allowed()),
        "reset" => keep(connection_that_was_reset()),
        _ => panic!("unknown {kind}"),
    }
    count(u64::MAX);
}

/// Keeps what is given.
fn keep<T>(_kept: T) {
    count(u64::MAX);
}

fn member_of_a_group() -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::LOCALHOST).unwrap();
    socket
}

fn connection_with_urgent_data() -> (TcpStream, TcpStream) {
    let (near, far) = connection();
    // SAFETY: one byte is sent from live memory.
    let sent = unsafe { libc::send(near.as_raw_fd(), [1_u8].as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    (near, far)
}

/// Nobody else finds it: its name goes at once.
fn open_message_queue() -> libc::mqd_t {
    let name = CString::new(format!("/workload-{}", std::process::id())).unwrap();
    let none = std::ptr::null_mut::<libc::mq_attr>();
    // SAFETY: the name is a live C string; no attributes are passed.
    let queue = unsafe { libc::mq_open(name.as_ptr(), libc::O_CREAT | libc::O_RDONLY, 0o600, none) };
    // SAFETY: the name is a live C string.
    unsafe { libc::mq_unlink(name.as_ptr()) };
    checked(queue).unwrap();
    queue
}

fn use_semaphores() {
    // SAFETY: no memory is passed but one live operation.
    let done = unsafe {
        let set = libc::semget(libc::IPC_PRIVATE, 2, 0o600);
        libc::semop(set, &mut libc::sembuf { sem_num: 1, sem_op: 1, sem_flg: 0 }, 1)
    };
    checked(done).unwrap();
}

fn send_message() {
    let message: [libc::c_long; 2] = [1, 2];
    // SAFETY: a type and a live message of the length given.
    let done = unsafe {
        let queue = libc::msgget(libc::IPC_PRIVATE, 0o600);
        libc::msgsnd(queue, message.as_ptr().cast(), size_of::<libc::c_long>(), 0)
    };
    checked(done).unwrap();
}

fn make_segment() {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) }).unwrap();
}

fn unshare(what: libc::c_int) {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::unshare(what) }).unwrap();
}

fn count_by_another_clock() {
    unshare(libc::CLONE_NEWTIME);
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["count", "1000000000"]).status().unwrap();
}

/// Its child does the same as this, and never lets it go on.
fn wait_for_a_child() {
    // SAFETY: as fork(), but for the wait; the child has no other threads, and needs none.
    unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0) };
}

/// They come behind bytes that are not read.
fn socket_with_descriptors() -> (UnixStream, UnixStream) {
    let (mut near, far) = UnixStream::pair().unwrap();
    near.write_all(b"bytes").unwrap();
    let sent = fabric::seqpacket::send(near.as_fd(), b"one", &[io::stdin().as_fd()]);
    sent.unwrap();
    (near, far)
}

fn socket_with_credentials() -> (UnixDatagram, UnixDatagram) {
    let (near, far) = UnixDatagram::pair().unwrap();
    set_option(far.as_raw_fd(), (libc::SOL_SOCKET, libc::SO_PASSCRED, 1));
    near.send(b"who am I?").unwrap();
    (near, far)
}

fn run_from_memory() {
    // SAFETY: the name is a live C string.
    let memory = unsafe { libc::memfd_create(c"program".as_ptr(), 0) };
    checked(memory).unwrap();
    let path = format!("/proc/self/fd/{memory}");
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    panic!("{}", Command::new(path).args(["count", "1000000000"]).exec());
}

fn connection_to_accept() -> (UnixListener, UnixStream) {
    let address = SocketAddr::from_abstract_name(b"unaccepted").unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    (&stream).write_all(b"sent").unwrap();
    (listener, stream)
}

fn map_sealed_memory() {
    // SAFETY: the name is a live C string, and the kernel chooses a place for the mapping.
    unsafe {
        let memory = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        checked(libc::ftruncate(memory, 4096)).unwrap();
        checked(libc::fcntl(memory, libc::F_ADD_SEALS, libc::F_SEAL_WRITE)).unwrap();
        let none = std::ptr::null_mut();
        assert_ne!(libc::mmap(none, 4096, libc::PROT_READ, libc::MAP_SHARED, memory, 0), libc::MAP_FAILED);
    }
}

fn be_scheduled_by_deadlines() {
    let ms = 1_000_000_u64;
    let words = [48 | 6 << 32, 0, 0, 10 * ms, 100 * ms, 100 * ms];
    // SAFETY: the words are a live `sched_attr`, as long as it says.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, words.as_ptr(), 0) as i32 }).unwrap();
}

fn huge_memory() -> OwnedFd {
    // SAFETY: the name is a live C string, and the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"huge".as_ptr(), libc::MFD_HUGETLB)) }
}

fn pidfd_of_a_thread() -> OwnedFd {
    // SAFETY: no memory is passed, and the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, libc::gettid(), libc::O_EXCL) as i32) }
}

/// As CRIU does, which has not come to take it away.
fn map_left_code() {
    // SAFETY: the name is a live C string, and the kernel chooses a place for the mapping.
    unsafe {
        let memory = libc::memfd_create(c"CRIUMFD".as_ptr(), libc::MFD_CLOEXEC);
        checked(libc::ftruncate(memory, 4096)).unwrap();
        let (rights, none) = (libc::PROT_READ | libc::PROT_EXEC, std::ptr::null_mut());
        assert_ne!(libc::mmap(none, 4096, rights, libc::MAP_SHARED, memory, 0), libc::MAP_FAILED);
        checked(libc::close(memory)).unwrap();
    }
}

fn end_first_thread() {
    thread::spawn(|| count(u64::MAX));
    // SAFETY: nothing of this thread is used any more.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// As fork(), but for that.
fn make_child_with_one_directory() {
    // SAFETY: the child has no other threads, and needs none.
    unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FS | libc::SIGCHLD, 0, 0, 0, 0) };
}

fn many_pipes() -> Vec<(io::PipeReader, io::PipeWriter)> {
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    // SAFETY: the limit is live.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).unwrap();
    (0..1025).map(|_| io::pipe().unwrap()).collect()
}

fn corked_socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    set_option(socket.as_raw_fd(), (libc::IPPROTO_UDP, libc::UDP_CORK, 1));
    socket
}

/// It has asked the kernel which links there are.
fn socket_with_an_answer() -> OwnedFd {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    // Its length, kind, number and sender, and for which family it asks.
    let request = [20, i32::from(libc::RTM_GETLINK) | flags << 16, 1, 0, 0];
    // SAFETY: the request is live and as long as said.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), 20, 0) };
    assert_eq!(sent, 20, "{}", io::Error::last_os_error());
    socket
}

fn ping_socket() -> OwnedFd {
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
    socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP)
}

/// It reads nothing, while its other end is closed.
fn peer_of_an_orphan() -> TcpStream {
    let (near, far) = connection();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 65_536]).is_ok() {}
    drop(near);
    far
}

fn semaphore_of_events() -> OwnedFd {
    // SAFETY: no memory is passed.
    let events = unsafe { libc::eventfd(3, libc::EFD_SEMAPHORE) };
    checked(events).unwrap();
    // SAFETY: the kernel has just made it for us.
    unsafe { OwnedFd::from_raw_fd(events) }
}

fn pipe_of_packets() -> [OwnedFd; 2] {
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two numbers.
    checked(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_DIRECT) }).unwrap();
    // SAFETY: the kernel has just made them for us.
    ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) })
}

fn as_many_files_as_allowed() -> Vec<File> {
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: the limit is live.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Its other end is closed with something unread.
fn connection_that_was_reset() -> TcpStream {
    let (near, far) = connection();
    (&near).write_all(&[0]).unwrap();
    far.peek(&mut [0]).unwrap();
    drop(far);
    near
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> OwnedFd {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(family, kind, protocol) };
    checked(socket).unwrap();
    // SAFETY: the kernel has just made it for us.
    unsafe { OwnedFd::from_raw_fd(socket) }
}
