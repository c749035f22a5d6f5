use api::Shape;
use rpc::net::DeviceKind;

use super::super::devices;
use super::super::plan::MOST_NUMBERS;
use super::*;
use crate::core::Command;
use crate::open::open;

/// Replaces the overlay's layout by a star of these hosts.
struct Lay(Arc<Cluster>, BTreeSet<HostName>);

impl Command for Lay {
    type Reply = ();

    async fn run(self, owner: &mut Owner) {
        let plan = owner.view().get::<Rollout>().plan().lay(Shape::Star, None, &self.1, false);
        use_plan(&self.0, owner, plan.unwrap()).await.unwrap();
    }
}

/// A device of h1.
struct Attach(HostName);

impl Command for Attach {
    type Reply = devices::Device;

    async fn run(self, owner: &mut Owner) -> Self::Reply {
        let kind = DeviceKind::Station { address: None, mtu: 1400 };
        let changed = owner.view().get::<Devices>().added(&devices::key(&self.0, "tap1"), kind, None);
        devices::note(owner, changed.clone()).await.unwrap();
        changed.device().unwrap().clone()
    }
}

#[tokio::test]
async fn a_host_that_has_a_device_keeps_its_number_however_many_others_leave() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = open(&directory.path().join("store")).unwrap();
    let (h1, h2) = (HostName::new("h1").unwrap(), HostName::new("h2").unwrap());
    let lay = async |hosts: BTreeSet<HostName>| cluster.run(Lay(cluster.clone(), hosts)).await;
    lay([h1.clone(), h2.clone()].into()).await;
    let number = |host| cluster.view().get::<Rollout>().plan().number(host);
    let had = number(&h1).unwrap();
    let device = cluster.run(Attach(h1.clone())).await;
    for round in 0..4 {
        let others = (0..MOST_NUMBERS / 3).map(|other| HostName::new(&format!("n{round}-{other}")).unwrap());
        lay(others.collect()).await;
    }
    assert_eq!(number(&h2), None, "the number is forgotten");
    lay([h1.clone(), h2.clone()].into()).await;
    // h1 keeps its number, because nodes ignore a new location with an unchanged epoch.
    assert_eq!(number(&h1), Some(had));
    assert!(number(&h2).is_some_and(|number| number != had && number.0 > 2));
    let entry = cluster.view().get::<Devices>().entry(device.mac, |_| Some(had)).unwrap();
    assert_eq!((entry.node, entry.epoch), (had, device.epoch));
}
