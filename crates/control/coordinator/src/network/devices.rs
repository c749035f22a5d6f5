//! Devices and the locations of stations: the coordinator distributes them, so that nodes need not learn them from traffic.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use api::{Failure, NetDevice};
use fabric::{Epoch, network};
use moves::HostName;
use overlay::Mac;
use overlay::switch::Entry;
use overlay::topology::NodeId;
use rpc::net::{self, DeviceKind, MOST_STATIONS, ToNode};
use serde::{Deserialize, Serialize};
use store::{Change, DeviceKey, Store, StoreError, Value};

use crate::core::{Feature, Owner};

/// A device of the overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub mac: Mac,
    /// The number of the last change to this device.
    pub epoch: Epoch,
    kind: DeviceKind,
}

/// All devices of the overlay.
#[derive(Default)]
pub struct Devices {
    devices: BTreeMap<DeviceKey, Device>,
    macs: HashMap<Mac, DeviceKey>,
    /// The number of the last change to any device.
    last: Epoch,
    /// Devices with a change in progress.
    busy: BTreeSet<DeviceKey>,
    moving: BTreeSet<Mac>,
}

/// The failure for a MAC that is in use; `who` describes the user.
pub fn mac_is_taken(mac: Mac, who: &str) -> Failure {
    let remedy = "choose another MAC, or omit `--mac` to get a free one";
    Failure::new(format!("the MAC {mac} is already in use on the overlay: {who}"), remedy)
}

/// The key of the device `name` of `host`.
pub fn key(host: &HostName, name: &str) -> DeviceKey {
    (host.to_string(), name.to_owned())
}

/// The address of a device of this kind, if it has one.
pub fn address(kind: &DeviceKind) -> Option<IpAddr> {
    match kind {
        DeviceKind::Station { address, .. } | DeviceKind::Contained { address, .. } => {
            address.as_ref()?.split('/').next()?.parse().ok()
        }
        DeviceKind::Adopted { .. } | DeviceKind::Redirected { .. } | DeviceKind::Proxy { .. } => None,
    }
}

/// A change of devices, to be made durable.
#[derive(Clone)]
pub struct Changed {
    remove: Option<DeviceKey>,
    insert: Option<(DeviceKey, Device)>,
    /// The number of the change.
    pub epoch: Epoch,
}

impl Changed {
    /// The device that is added.
    pub fn device(&self) -> Option<&Device> {
        self.insert.as_ref().map(|(_, device)| device)
    }

    fn for_journal(&self) -> Change {
        let insert = self.insert.as_ref().map(|(key, device)| (key.clone(), Value::of(device)));
        Change::Devices { remove: self.remove.clone(), insert, epoch: self.epoch }
    }
}

/// Makes a change durable, and applies it.
///
/// # Errors
/// Errors of [`Owner::append`].
pub async fn note(owner: &Owner, changed: Changed) -> Result<(), Failure> {
    owner.append(changed.for_journal()).await?;
    owner.edit(|state| state.get_mut::<Devices>().apply(changed));
    Ok(())
}

impl Feature for Devices {}

impl Devices {
    /// Loads the devices from the store.
    pub fn load(store: &Store) -> Result<Self, StoreError> {
        let (devices, last) = store.devices::<Device>()?;
        let macs = devices.iter().map(|(key, device)| (device.mac, key.clone())).collect();
        Ok(Self { devices, macs, last, ..Self::default() })
    }

    /// Begins a change to the device at `key`.
    ///
    /// # Errors
    /// If another change is in progress.
    pub fn begin(&mut self, key: &DeviceKey) -> Result<(), Failure> {
        if self.busy.insert(key.clone()) {
            return Ok(());
        }
        let (host, name) = key;
        Err(Failure::new(
            format!("another change of device {name} on {host} is in progress"),
            "try again when it has finished",
        ))
    }

    /// Ends the change.
    pub fn end(&mut self, key: &DeviceKey) {
        self.busy.remove(key);
    }

    /// A new device at a free key, with the requested MAC or a generated one.
    pub fn added(&self, key: &DeviceKey, kind: DeviceKind, mac: Option<Mac>) -> Changed {
        let epoch = Epoch(self.last.0 + 1);
        let device = Device { mac: mac.unwrap_or_else(|| self.free_mac(key, &kind)), epoch, kind };
        Changed { remove: None, insert: Some((key.clone(), device)), epoch }
    }

    /// The end of the device at `key`.
    pub fn removed(&self, key: &DeviceKey) -> Changed {
        Changed { remove: Some(key.clone()), insert: None, epoch: Epoch(self.last.0 + 1) }
    }

    /// The move of the station at `from` to `to`: the point of no return.
    pub fn moved(&self, from: &DeviceKey, to: &DeviceKey, device: Device) -> Changed {
        Changed { remove: Some(from.clone()), insert: Some((to.clone(), device)), epoch: self.last }
    }

    /// Takes a change that is durable.
    fn apply(&mut self, changed: Changed) {
        self.last = changed.epoch;
        if let Some(device) = changed.remove.and_then(|key| self.devices.remove(&key)) {
            self.macs.remove(&device.mac);
        }
        if let Some((key, device)) = changed.insert {
            self.macs.insert(device.mac, key.clone());
            self.devices.insert(key, device);
        }
    }

    /// The device at `key`.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, key: &DeviceKey) -> Result<&Device, Failure> {
        let (host, name) = key;
        let unknown = || {
            let what = format!("no device {name} is attached on {host}");
            Failure::new(what, "`transhume net devices` lists the attached devices")
        };
        self.devices.get(key).ok_or_else(unknown)
    }

    /// Number of devices of `host`.
    pub fn count(&self, host: &HostName) -> usize {
        self.of(host).count()
    }

    /// The device that has the address `wanted`.
    pub fn with_address(&self, wanted: IpAddr) -> Option<&DeviceKey> {
        self.devices.iter().find(|(_, device)| address(&device.kind) == Some(wanted)).map(|(key, _)| key)
    }

    /// The hosts that have devices, in the order of their names.
    pub fn hosts(&self) -> BTreeSet<HostName> {
        self.devices.keys().filter_map(|(host, _)| HostName::new(host).ok()).collect()
    }

    /// The names of the devices of `host`.
    pub fn names(&self, host: &HostName) -> Vec<String> {
        self.of(host).map(|((_, name), _)| name.clone()).collect()
    }

    /// The stored devices of `host`, as users see them.
    pub fn noted(&self, host: &HostName) -> Vec<NetDevice> {
        self.of(host).map(|((_, name), device)| device.for_node(name).describe()).collect()
    }

    fn of(&self, host: &HostName) -> impl Iterator<Item = (&DeviceKey, &Device)> {
        let first = (host.to_string(), String::new());
        self.devices.range(first..).take_while(move |((of, _), _)| of == host.as_str())
    }

    /// Checks that there is no device at `key`.
    ///
    /// # Errors
    /// If there is one.
    pub fn check_free(&self, key: &DeviceKey) -> Result<(), Failure> {
        let (host, name) = key;
        if self.devices.contains_key(key) {
            let remedy = "choose another name, or detach the device first: `transhume net detach`";
            return Err(Failure::new(format!("a device {name} is already attached on {host}"), remedy));
        }
        Ok(())
    }

    /// Checks that no device has `mac` and that it is not reserved for instances.
    ///
    /// # Errors
    /// If the MAC is in use or reserved.
    pub fn check_mac(&self, mac: Mac) -> Result<(), Failure> {
        match self.macs.get(&mac) {
            None if network::is_an_instances(mac.0) => {
                Err(mac_is_taken(mac, "MACs with this prefix are reserved for instances"))
            }
            None => Ok(()),
            Some((host, name)) => Err(mac_is_taken(mac, &format!("device {name} on {host} has it"))),
        }
    }

    /// Begins to move the station of `device`. Returns the device as it will be after the move.
    pub fn begin_move(&mut self, device: Device) -> Device {
        self.moving.insert(device.mac);
        // The number is used up even if the move fails.
        self.last = Epoch(self.last.0 + 1);
        Device { epoch: self.last, ..device }
    }

    /// Ends the move.
    pub fn end_move(&mut self, mac: Mac) {
        self.moving.remove(&mac);
    }

    /// The message with the devices of `host` for its node.
    pub fn of_host(&self, host: &HostName) -> ToNode {
        let devices = self.of(host).map(|((_, name), device)| device.for_node(name)).collect();
        ToNode::Devices { devices, moving: self.moving.iter().copied().collect() }
    }

    /// Messages with the locations of all stations, including those `of_instances`, for each node. `number` maps a host to its number.
    pub fn stations(&self, number: impl Fn(&str) -> Option<NodeId>, of_instances: Vec<Entry>) -> Vec<ToNode> {
        let entry = |((host, _), device): (&DeviceKey, &Device)| device.entry(number(host)?);
        let entries: Vec<_> = self.devices.iter().filter_map(entry).chain(of_instances).collect();
        let part = |part: &[Entry]| ToNode::Stations { entries: part.to_vec(), all_until: None };
        let last = ToNode::Stations { entries: Vec::new(), all_until: Some(self.last) };
        entries.chunks(MOST_STATIONS).map(part).chain([last]).collect()
    }

    /// The location of the station with `mac`. `number` maps a host to its number.
    pub fn entry(&self, mac: Mac, number: impl Fn(&str) -> Option<NodeId>) -> Option<Entry> {
        let key = self.macs.get(&mac)?;
        self.devices.get(key)?.entry(number(&key.0)?)
    }

    /// A free MAC; the same for the same name, if possible.
    fn free_mac(&self, (host, name): &DeviceKey, kind: &DeviceKind) -> Mac {
        let first = match kind {
            // Locally administered, so that no manufacturer has assigned it.
            DeviceKind::Station { .. }
            | DeviceKind::Contained { .. }
            | DeviceKind::Adopted { .. }
            | DeviceKind::Redirected { .. } => 0x02,
            // A bridge without its own MAC takes the lowest MAC of its ports; this one must not be the lowest.
            DeviceKind::Proxy { .. } => 0xfe,
        };
        let mut attempts = (0_u32..).map(|attempt| {
            let hash = blake3::hash(format!("{host}\0{name}\0{attempt}").as_bytes());
            let [a, b, c, d, e, ..] = *hash.as_bytes();
            Mac([first, a, b, c, d, e])
        });
        let is_free = |mac: &Mac| !self.macs.contains_key(mac) && !network::is_an_instances(mac.0);
        attempts.find(is_free).unwrap_or(Mac::BROADCAST)
    }
}

impl Device {
    /// Whether it is a TAP that existed before it was attached.
    pub fn is_adopted(&self) -> bool {
        self.kind.is_adopted()
    }

    /// Whether it is of this kind.
    pub fn is(&self, kind: &DeviceKind) -> bool {
        self.kind == *kind
    }

    /// The device as nodes describe it.
    pub fn for_node(&self, name: &str) -> net::Device {
        net::Device { name: name.to_owned(), mac: self.mac, kind: self.kind.clone() }
    }

    /// The location of the device's station, if it has one, behind `node`.
    pub fn entry(&self, node: NodeId) -> Option<Entry> {
        if matches!(self.kind, DeviceKind::Proxy { .. }) {
            return None;
        }
        let addresses = address(&self.kind).into_iter().collect();
        Some(Entry { mac: self.mac, node, port: None, epoch: self.epoch, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        _directory: tempfile::TempDir,
        path: std::path::PathBuf,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            Self { path: directory.path().join("store"), _directory: directory }
        }

        /// The store and its contents, as a coordinator finds them at its start.
        fn open(&self) -> (Store, Devices) {
            let store = Store::open(&self.path).unwrap();
            let devices = Devices::load(&store).unwrap();
            (store, devices)
        }
    }

    /// Makes a change, and returns the device that it notes.
    fn noted(
        store: &Store,
        devices: &mut Devices,
        change: impl FnOnce(&Devices) -> Changed,
    ) -> Option<Device> {
        let changed = change(devices);
        store.apply(&changed.for_journal()).unwrap();
        devices.apply(changed.clone());
        changed.device().cloned()
    }

    fn host(name: &str) -> HostName {
        HostName::new(name).unwrap()
    }

    fn station() -> DeviceKind {
        DeviceKind::Station { address: Some("10.88.0.1/24".into()), mtu: 1400 }
    }

    fn entries(devices: &Devices) -> (Vec<Entry>, Option<Epoch>) {
        let mut found = (Vec::new(), None);
        for part in devices.stations(|host| Some(NodeId(host[1..].parse().unwrap())), Vec::new()) {
            let ToNode::Stations { entries, all_until } = part else { panic!("{part:?}") };
            assert!(entries.len() <= MOST_STATIONS);
            found.0.extend(entries);
            found.1 = all_until;
        }
        found
    }

    fn names(devices: &Devices, of: &str) -> Vec<String> {
        let ToNode::Devices { devices, .. } = devices.of_host(&host(of)) else { panic!("others are told") };
        devices.into_iter().map(|device| device.name).collect()
    }

    #[test]
    fn devices_are_noted_and_each_change_has_a_higher_number() {
        let (world, h1) = (World::new(), host("h1"));
        let key = key(&h1, "tap1");
        let (store, mut devices) = world.open();
        let first = noted(&store, &mut devices, |devices| devices.added(&key, station(), None)).unwrap();
        assert!(devices.check_free(&key).unwrap_err().message.contains("already attached"));
        drop((store, devices));

        let (store, mut devices) = world.open();
        assert_eq!(devices.get(&key).unwrap(), &first);
        let epoch = devices.removed(&key).epoch;
        assert_eq!(noted(&store, &mut devices, |devices| devices.removed(&key)), None);
        assert!(epoch > first.epoch);
        assert!(devices.get(&key).unwrap_err().message.contains("no device tap1"));
        drop((store, devices));

        let (store, mut devices) = world.open();
        let again = noted(&store, &mut devices, |devices| devices.added(&key, station(), None)).unwrap();
        assert!(again.epoch > epoch && again.mac == first.mac);
    }

    #[test]
    fn a_mac_stays_with_its_station_and_is_unique() {
        let (world, from) = (World::new(), key(&host("h1"), "tap1"));
        let to = key(&host("h2"), "tap1");
        let (store, mut devices) = world.open();
        let before = noted(&store, &mut devices, |devices| devices.added(&from, station(), None)).unwrap();
        let moving = devices.begin_move(before.clone());
        assert!(moving.epoch > before.epoch && moving.mac == before.mac);
        assert_eq!(names(&devices, "h1"), ["tap1"]);
        noted(&store, &mut devices, |devices| devices.moved(&from, &to, moving.clone()));
        devices.end_move(moving.mac);
        assert!(names(&devices, "h1").is_empty() && names(&devices, "h2") == ["tap1"]);
        let another = noted(&store, &mut devices, |devices| devices.added(&from, station(), None)).unwrap();
        assert_ne!(another.mac, before.mac);
        drop((store, devices));

        let (_store, devices) = world.open();
        let (entries, until) = entries(&devices);
        let places: Vec<_> = entries.iter().map(|entry| (entry.node, entry.mac)).collect();
        assert_eq!(places, [(NodeId(1), another.mac), (NodeId(2), before.mac)]);
        assert_eq!(until, Some(another.epoch));
        assert_eq!(entries[0].addresses, [IpAddr::from([10, 88, 0, 1])]);
    }

    /// The stored format of a device before further kinds were added.
    #[derive(Serialize)]
    struct NotedBefore(Mac, Epoch, KindBefore);

    #[derive(Serialize)]
    enum KindBefore {
        Station { address: Option<String>, mtu: u32 },
        Proxy { bridge: String },
    }

    #[test]
    fn devices_stored_by_earlier_releases_are_decoded() {
        let (world, mac, epoch) = (World::new(), Mac([2, 0, 0, 0, 0, 1]), Epoch(1));
        let keys = ["lan", "tap1"].map(|name| key(&host("h1"), name));
        let kinds = [
            KindBefore::Proxy { bridge: "br0".into() },
            KindBefore::Station { address: Some("10.88.0.1/24".into()), mtu: 1400 },
        ];
        for (key, kind) in keys.iter().zip(kinds) {
            let store = Store::open(&world.path).unwrap();
            let insert = Some((key.clone(), Value::of(&NotedBefore(mac, epoch, kind))));
            store.apply(&Change::Devices { remove: None, insert, epoch }).unwrap();
        }
        let (_store, devices) = world.open();
        let device = |kind| Device { mac, epoch, kind };
        assert_eq!(devices.get(&keys[0]).unwrap(), &device(DeviceKind::Proxy { bridge: "br0".into() }));
        assert_eq!(devices.get(&keys[1]).unwrap(), &device(station()));
    }

    #[test]
    fn a_mac_is_given_to_one_device() {
        let (world, of_h1, of_h2) = (World::new(), key(&host("h1"), "tap1"), key(&host("h2"), "tap2"));
        let (store, mut devices) = world.open();
        let made_up =
            noted(&store, &mut devices, |devices| devices.added(&of_h1, station(), None)).unwrap().mac;
        let given = Mac([0x52, 0x54, 0, 0, 0, 1]);
        devices.check_mac(given).unwrap();
        let with_mac = |devices: &Devices| devices.added(&of_h2, station(), Some(given));
        assert_eq!(noted(&store, &mut devices, with_mac).unwrap().mac, given);
        drop((store, devices));
        let (_store, devices) = world.open();
        for (mac, place) in [(given, "tap2 on h2"), (made_up, "tap1 on h1")] {
            let taken = devices.check_mac(mac).unwrap_err().message;
            assert!(taken.contains(&mac.to_string()) && taken.contains(place), "{taken}");
        }
    }

    #[test]
    fn one_thing_at_a_time_is_done_with_a_device() {
        let (mut devices, key) = (Devices::default(), key(&host("h1"), "tap1"));
        devices.begin(&key).unwrap();
        assert!(devices.begin(&key).unwrap_err().message.contains("is in progress"));
        devices.end(&key);
        devices.begin(&key).unwrap();
    }

    #[test]
    fn a_host_gets_its_own_devices_and_all_stations() {
        let world = World::new();
        let (store, mut devices) = world.open();
        for (of, name) in [("h1", "a"), ("h11", "b"), ("h2", "c")] {
            let key = key(&host(of), name);
            noted(&store, &mut devices, |devices| devices.added(&key, station(), None));
        }
        let proxy = DeviceKind::Proxy { bridge: "br0".into() };
        let key = key(&host("h1"), "lan");
        let lan = noted(&store, &mut devices, |devices| devices.added(&key, proxy, None)).unwrap();
        assert!(lan.mac.0[0] == 0xfe && lan.entry(NodeId(1)).is_none());
        assert_eq!(names(&devices, "h1"), ["a", "lan"]);
        assert_eq!(entries(&devices).0.len(), 3);
    }
}
