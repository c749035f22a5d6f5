//! Records that were written are found again, even if the writer is killed meanwhile.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fabric::{Epoch, FabricId, Vid};
use moves::entry::{Entry, NodeRecord, Role};
use moves::journal::{Exit, Instance, MoveRecord, Record, Snapshot, Stage};
use moves::placement::Placement;
use moves::{HostName, MoveId, Side};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use store::{
    Change, EventLog, Journal, MAX_ENDED_INSTANCES, MAX_ENDED_MOVES, MAX_EVENTS, MAX_EVENTS_BYTES, Members,
    NodeStore, Store, StoreError, StoreJournal, Value,
};

/// Where the child of [`a_killed_writer_leaves_every_acknowledged_record`] writes.
const CHILD: &str = "TRANSHUME_TEST_STORE";

fn host(number: u64) -> HostName {
    HostName::new(&format!("h{number}")).unwrap()
}

fn vid(lid: u16) -> Vid {
    Vid::new(lid).unwrap()
}

/// The `number`-th record of an endless history in which instances start, move and end.
fn record(number: u64) -> Record {
    let (round, step) = (number / 7, number % 7);
    let vid = vid((round % 200 + 1) as u16);
    let id = MoveId(2 * round + u64::from(step >= 5));
    let instance = Instance {
        name: format!("i{round}"),
        fabric: FabricId(1),
        group: None,
        placement: Placement::default(),
        host: host(1),
        epoch: Epoch(0),
        spec: vec![step as u8; 300],
    };
    let began = MoveRecord {
        vid,
        source: host(1).into(),
        destination: host(2).into(),
        epoch: Epoch(0),
        dry_run: false,
        post_copy: false,
        stage: Stage::Began,
    };
    match step {
        0 => Record::InstanceAdded { vid, instance },
        1 => Record::MoveBegan { id, record: began },
        2 => Record::MovesCommitted { ids: [id].into() },
        3 => Record::MoveConfirmed { id },
        4 => Record::MoveEnded { id },
        5 => Record::MoveBegan { id, record: began },
        _ if round % 2 == 0 => Record::InstanceEnded { vid, exit: Exit::Code(0) },
        _ => Record::MoveRolledBack { id, reasons: vec!["no room".into()] },
    }
}

fn snapshot_after(records: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    (0..records).for_each(|number| snapshot.apply(&record(number)));
    snapshot
}

#[test]
fn store_equals_the_result_of_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path).unwrap();
    for number in 0..100 {
        store.apply(&record(number).into()).unwrap();
        assert_eq!(store.load().unwrap(), snapshot_after(number + 1), "after record {number}");
    }
    drop(store);
    assert_eq!(Store::open(&path).unwrap().load().unwrap(), snapshot_after(100));
}

#[test]
fn last_move_time_is_stored_until_the_instance_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path).unwrap();
    let last_moves = |store: &Store| {
        let moved = store.last_moves().unwrap().into_iter();
        moved.map(|(vid, at_ms)| (vid, at_ms > 0)).collect::<Vec<_>>()
    };
    (0..2).for_each(|number| store.apply(&record(number).into()).unwrap());
    assert_eq!(last_moves(&store), [], "it has not been committed");
    store.apply(&record(2).into()).unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(last_moves(&store), [(vid(1), true)]);
    (3..6).for_each(|number| store.apply(&record(number).into()).unwrap());
    assert_eq!(last_moves(&store), [(vid(1), true)]);
    store.apply(&record(6).into()).unwrap();
    assert_eq!(last_moves(&store), [], "another one may have its VID");

    let Record::MoveBegan { record: mut restore, .. } = record(1) else { unreachable!() };
    restore.source = Side::Images("/saved".into());
    store.apply(&record(0).into()).unwrap();
    store.apply(&Record::MoveBegan { id: MoveId(9), record: restore }.into()).unwrap();
    store.apply(&Record::MovesCommitted { ids: [MoveId(9)].into() }.into()).unwrap();
    assert_eq!(last_moves(&store), [], "it was restored");
}

#[test]
fn ended_moves_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store")).unwrap();
    for id in 1..=MAX_ENDED_MOVES + 3 {
        let Record::MoveBegan { record, .. } = record(1) else { unreachable!() };
        store.apply(&Record::MoveBegan { id: MoveId(id), record }.into()).unwrap();
        store.apply(&Record::MoveEnded { id: MoveId(id) }.into()).unwrap();
    }
    let ended = store.ended_moves().unwrap();
    assert_eq!(ended.len() as u64, MAX_ENDED_MOVES);
    assert_eq!(ended[0].id, MoveId(4));
    assert_eq!(store.load().unwrap().last_move, MoveId(MAX_ENDED_MOVES + 3));
}

#[test]
fn ended_instances_are_found_again_and_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path).unwrap();
    for code in 0..=MAX_ENDED_INSTANCES as i32 {
        store.apply(&record(0).into()).unwrap();
        store.apply(&Record::InstanceEnded { vid: vid(1), exit: Exit::Code(code) }.into()).unwrap();
    }
    store.apply(&Record::InstanceEnded { vid: vid(9), exit: Exit::Code(0) }.into()).unwrap();
    drop(store);
    let ended = Store::open(&path).unwrap().ended_instances().unwrap();
    let codes: Vec<_> = ended.iter().map(|ended| ended.exit.clone()).collect();
    let expected: Vec<_> = (1..=MAX_ENDED_INSTANCES as i32).map(Exit::Code).collect();
    assert_eq!(codes, expected);
    assert_eq!((ended[0].vid, ended[0].instance.name.as_str()), (vid(1), "i0"));
}

#[test]
fn events_are_numbered_on_and_bounded_by_count_and_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let log = EventLog::open(&path).unwrap();
    let events = |count: u64, size: usize| vec![vec![7; size]; count as usize];
    assert_eq!(log.append(&events(MAX_EVENTS, 1)).unwrap(), MAX_EVENTS);
    assert_eq!(log.append(&[b"one".to_vec(), b"two".to_vec()]).unwrap(), MAX_EVENTS + 2);
    let kept = log.after(0, usize::MAX).unwrap();
    assert_eq!((kept.len() as u64, kept[0].0), (MAX_EVENTS, 3), "the oldest go");
    drop(log);
    let log = EventLog::open(&path).unwrap();
    let later = vec![(MAX_EVENTS + 1, b"one".to_vec()), (MAX_EVENTS + 2, b"two".to_vec())];
    assert_eq!(log.after(MAX_EVENTS, usize::MAX).unwrap(), later);
    assert_eq!(log.after(MAX_EVENTS, 1).unwrap(), later[..1]);
    log.append(&events(9, MAX_EVENTS_BYTES as usize / 8)).unwrap();
    assert_eq!(log.after(0, usize::MAX).unwrap().len(), 8);
    log.append(&events(1, MAX_EVENTS_BYTES as usize + 1)).unwrap();
    assert_eq!(log.after(0, usize::MAX).unwrap()[0].0, MAX_EVENTS + 12, "numbers go on");
    assert!(log.after(u64::MAX, 1).unwrap().is_empty());
}

#[test]
fn drained_hosts_are_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path).unwrap();
    for (host, is_drained) in [("h2", true), ("h1", true), ("h2", true), ("h3", false), ("h1", false)] {
        store.apply(&Change::Drained { host: host.into(), is_drained }).unwrap();
    }
    drop(store);
    assert_eq!(Store::open(&path).unwrap().drained_hosts().unwrap(), ["h2"]);
}

#[test]
fn the_last_vid_is_that_given_out_or_brought_by_a_restore_whichever_is_higher() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store")).unwrap();
    let Record::InstanceAdded { instance, .. } = record(0) else { unreachable!() };
    let last = |change: Change| {
        store.apply(&change).unwrap();
        store.last_vid().unwrap().map(Vid::lid)
    };
    assert_eq!(store.last_vid().unwrap(), None);
    assert_eq!(last(Change::VidGiven(vid(2))), Some(2));
    let add = |lid| last(Record::InstanceAdded { vid: vid(lid), instance: instance.clone() }.into());
    assert_eq!([add(1), add(4)], [Some(2), Some(4)]);
    // They begin again after the last of all.
    assert_eq!(last(Change::VidGiven(vid(1))), Some(1));
}

#[tokio::test]
async fn the_journal_writes_in_order_and_its_notices_come_after_that() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let journal = StoreJournal::start(Store::open(&path).unwrap()).unwrap();
    journal.ready().await.unwrap();
    let notices: Vec<_> = (0..20).map(|number| journal.append(record(number).into())).collect();
    for notice in notices {
        notice.await.unwrap();
    }
    drop(journal);
    assert_eq!(Store::open(&path).unwrap().load().unwrap(), snapshot_after(20));
}

#[test]
fn a_store_in_use_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let _store = Store::open(&path).unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::InUse(_))));
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    std::fs::write(&path, b"something else entirely").unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::File { .. })));
}

#[test]
fn a_node_finds_its_entries_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let entry = Entry { epoch: Epoch(3), role: Role::Host { last_move: MoveId(9), memory_at: None } };
    let store = NodeStore::open(&path).unwrap();
    for lid in [1, 2] {
        store.apply(&NodeRecord::Set { vid: vid(lid), entry: entry.clone() }).unwrap();
    }
    store.apply(&NodeRecord::Removed { vid: vid(1) }).unwrap();
    drop(store);
    let entries = NodeStore::open(&path).unwrap().load().unwrap();
    assert_eq!(entries.into_iter().collect::<Vec<_>>(), [(vid(2), entry)]);
}

/// The child: writes records until it is killed, and prints the number of each durable one.
#[test]
#[ignore = "run by a_killed_writer_leaves_every_acknowledged_record"]
fn child_that_writes() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = Store::open(Path::new(&path)).unwrap();
    let first = std::env::var("FIRST").unwrap().parse().unwrap();
    for number in first..first + 100_000 {
        store.apply(&record(number).into()).unwrap();
        println!("durable {number}");
    }
}

/// Lets a child write from record `first` on, kills it after `lines`, and returns how many records it has reported as durable in
/// all.
fn write_and_kill(path: &Path, first: u64, lines: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "child_that_writes"])
        .env(CHILD, path)
        .env("FIRST", first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut said = output.filter_map(|line| Some(line.split_once("durable ")?.1.parse::<u64>().ok()? + 1));
    let mut durable = said.by_ref().take(lines).last().unwrap_or(first);
    child.kill().unwrap();
    durable = said.last().unwrap_or(durable);
    child.wait().unwrap();
    durable
}

#[test]
fn a_killed_writer_leaves_every_acknowledged_record() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let mut written = 0;
    for lines in [1, 2, 3, 5, 7, 11, 13, 17, 40, 80] {
        let acknowledged = write_and_kill(&path, written, lines);
        assert!(acknowledged > written, "the child wrote nothing");
        let snapshot = Store::open(&path).unwrap().load().unwrap();
        let in_flight = u64::from(snapshot != snapshot_after(acknowledged));
        written = acknowledged + in_flight;
        assert!(snapshot == snapshot_after(written), "neither {acknowledged} records nor one more");
    }
}

#[test]
fn store_files_are_accessible_to_their_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    drop(Store::open(&path).unwrap());
    assert_eq!(mode(), 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    drop(Store::open(&path).unwrap());
    assert_eq!(mode(), 0o600);
}

/// A file system of `kibibytes` that only this thread sees.
fn small_disk(kibibytes: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: the thread shares nothing with others that would be unshared but its view of the file systems.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    let size = CString::new(format!("size={kibibytes}k")).unwrap();
    mount("none", folder.path(), "tmpfs", MountFlags::empty(), size.as_c_str()).unwrap();
    folder
}

/// Writes a file until there is no room.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

#[test]
fn full_disk_refuses_new_operations_but_completes_those_in_progress() {
    let disk = small_disk(4096);
    let (path, filler) = (disk.path().join("store"), disk.path().join("fill"));
    let store = NodeStore::open(&path).unwrap();
    store.ready().unwrap();
    fill(&filler);
    let full = store.ready().unwrap_err();
    assert!(full.to_string().contains("No space left on device") && !full.remedy().is_empty(), "{full}");
    let entry =
        Entry { epoch: Epoch(1), role: Role::Ended { exit: Exit::Lost { reason: "x".repeat(60_000) } } };
    let set = |number| NodeRecord::Set { vid: vid(number), entry: entry.clone() };
    for number in 1..4 {
        store.apply(&set(number)).unwrap();
    }
    // Takes the reserve away as well.
    fill(&disk.path().join("more"));
    let lost = (4..100).find_map(|number| store.apply(&set(number)).err()).unwrap();
    assert!(lost.to_string().contains("No space left on device") && !lost.remedy().is_empty(), "{lost}");
    assert!(store.ready().is_err());
    fs::remove_file(disk.path().join("more")).unwrap();
    fs::remove_file(&filler).unwrap();
    store.ready().unwrap();
    store.apply(&set(100)).unwrap();
    drop(store);
    let found = NodeStore::open(&path).unwrap().load().unwrap();
    assert!([1, 2, 3, 100].iter().all(|number| found.get(&vid(*number)) == Some(&entry)));
}

#[test]
fn membership_survives_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let change = |tokens: &[(u64, Option<&u8>)], removed: Option<(&str, &u16)>| {
        let tokens = tokens.iter().map(|(number, token)| (*number, token.map(Value::of))).collect();
        let removed = removed.map(|(host, removal)| (host.to_owned(), Value::of(removal)));
        Store::open(&path).unwrap().apply(&Change::Members { tokens, removed }).unwrap();
    };
    change(&[(1, Some(&10)), (2, Some(&20))], None);
    change(&[(1, None), (2, Some(&21)), (3, Some(&30))], Some(("b", &1_u16)));
    change(&[], Some(("b", &2)));
    let members: Members<u8, u16> = Store::open(&path).unwrap().members().unwrap();
    let expected = Members { tokens: [(2, 21), (3, 30)].into(), removed: [("b".into(), 2)].into() };
    assert_eq!(members, expected);
    let path = directory.path().join("node");
    assert_eq!(NodeStore::open(&path).unwrap().removed::<u8>().unwrap(), None);
    NodeStore::open(&path).unwrap().set_removed(&7_u8).unwrap();
    assert_eq!(NodeStore::open(&path).unwrap().removed::<u8>().unwrap(), Some(7));
}
