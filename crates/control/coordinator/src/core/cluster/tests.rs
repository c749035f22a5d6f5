use fabric::{Epoch, FabricId, Vid};
use moves::journal::Instance;
use moves::placement::Placement;
use tokio::task::yield_now;

use super::*;
use crate::tests::held::Held;

fn start(journal: &Held) -> (tempfile::TempDir, Arc<Cluster>) {
    let directory = tempfile::tempdir().unwrap();
    let log = Log::open(&directory.path().join("events")).unwrap();
    let cluster = Cluster::start(Snapshot::default(), journal.clone(), log, |_| Ok(())).unwrap();
    (directory, cluster)
}

/// A new instance with this number.
struct Add(u16);

impl Command for Add {
    type Reply = Result<(), Failure>;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        owner.view().check_whole()?;
        let instance = Instance {
            name: format!("i{}", self.0),
            fabric: FabricId(1),
            group: None,
            placement: Placement::default(),
            host: HostName::new("h1").unwrap(),
            epoch: Epoch(0),
            spec: Vec::new(),
        };
        let vid = Vid::new(self.0).unwrap();
        let outputs = owner.decide(|machine, _| machine.add_instance(vid, instance)).unwrap();
        owner.perform(outputs).await;
        Ok(())
    }
}

fn instances(cluster: &Cluster) -> usize {
    cluster.view().snapshot().instances.len()
}

#[tokio::test]
async fn a_view_shows_a_decision_only_after_its_notice_and_commands_keep_their_order() {
    let journal = Held::new(0, false);
    let (_directory, cluster) = start(&journal);
    let adding = [1, 2].map(|lid| {
        let cluster = cluster.clone();
        tokio::spawn(async move { cluster.run(Add(lid)).await })
    });
    for _ in 0..100 {
        yield_now().await;
    }
    // The owner waits, and readers do not wait for it.
    assert_eq!(instances(&cluster), 0);
    for (number, one) in adding.into_iter().enumerate() {
        journal.give(1);
        one.await.unwrap().unwrap();
        assert_eq!(instances(&cluster), number + 1);
    }
    let vids: Vec<_> = cluster.view().snapshot().instances.keys().map(|vid| vid.lid()).collect();
    assert_eq!((vids, journal.changes().len()), (vec![1, 2], 2));
}

#[tokio::test]
async fn nothing_is_decided_after_a_change_could_not_be_written() {
    let (_directory, cluster) = start(&Held::new(10, true));
    cluster.run(Add(1)).await.unwrap();
    assert!(matches!(cluster.broken().await, StoreError::Gone));
    assert_eq!(instances(&cluster), 0);
    let refused = cluster.run(Add(2)).await.unwrap_err();
    assert_eq!(refused, failure::coordinator_ends());
}
