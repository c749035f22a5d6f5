use fabric::{Epoch, FabricId, Vid};
use moves::HostName;
use moves::journal::{Exit, Instance, Record};
use moves::placement::Placement;
use store::Store;

use super::*;
use crate::core::Log;
use crate::open::open;

fn instance(name: &str) -> Instance {
    Instance {
        name: name.into(),
        fabric: FabricId(1),
        group: None,
        placement: Placement::default(),
        host: HostName::new("h1").unwrap(),
        epoch: Epoch(0),
        spec: Vec::new(),
    }
}

fn record(vid: u16) -> MoveRecord {
    let host = |name| HostName::new(name).unwrap();
    let (source, destination) = (host("h1").into(), host("h2").into());
    let vid = Vid::new(vid).unwrap();
    let (dry_run, post_copy) = (false, false);
    MoveRecord { vid, source, destination, epoch: Epoch(0), dry_run, post_copy, stage: Stage::Began }
}

fn all(log: &Log) -> Vec<(u64, Occurrence)> {
    log.after(0).unwrap().events.into_iter().map(|event| (event.number, event.what)).collect()
}

#[tokio::test]
async fn the_next_coordinator_reconstructs_events_that_were_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path).unwrap();
    let log = Log::open(&directory.path().join("events.redb")).unwrap();
    let writer = tokio::spawn(log.clone().write());
    for (lid, name) in [(1, "a"), (2, "b"), (3, "c")] {
        let (vid, id, record) = (Vid::new(lid).unwrap(), MoveId(lid.into()), record(lid));
        store.apply(&Record::InstanceAdded { vid, instance: instance(name) }.into()).unwrap();
        log.note(&occurrences::started(&instance(name)));
        store.apply(&Record::MoveBegan { id, record: record.clone() }.into()).unwrap();
        log.note(&occurrences::move_began(name, id, &record, None));
    }
    log.flushed().await;
    // The moves of a and b are committed; that of c is not, and is rolled back. b ends.
    let (one, two) = (MoveId(1), MoveId(2));
    store.apply(&Record::MovesCommitted { ids: [one].into() }.into()).unwrap();
    store.apply(&Record::MoveConfirmed { id: one }.into()).unwrap();
    store.apply(&Record::MoveEnded { id: one }.into()).unwrap();
    store.apply(&Record::MoveRolledBack { id: two, reasons: vec!["no room".into()] }.into()).unwrap();
    store.apply(&Record::MoveEnded { id: two }.into()).unwrap();
    store.apply(&Record::InstanceEnded { vid: Vid::new(2).unwrap(), exit: Exit::Code(3) }.into()).unwrap();
    drop((store, log));
    writer.abort();
    assert!(writer.await.unwrap_err().is_cancelled());
    let cluster = open(&path).unwrap();
    let log = cluster.view().log().clone();
    tokio::spawn(log.clone().write());
    log.flushed().await;
    let told = all(&log);
    let numbers: Vec<_> = told.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
    let moved = |what: &Occurrence| matches!(what, Occurrence::Moved { id: 1, figures: None, .. });
    assert!(moved(&told[6].1), "{told:?}");
    let expected = "MoveRolledBack { instance: \"b\", from: \"h1\", to: \"h2\", id: 2, reason: \"no room\"";
    assert!(format!("{:?}", told[7].1).starts_with(expected), "{told:?}");
    assert!(matches!(&told[8].1, Occurrence::Exited { code: 3, .. }), "{told:?}");
    assert_eq!(told[9].1, Occurrence::CoordinatorStarted);
}
