//! The lab's namespaces and links.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::layout::{self, Layout, NAMESPACES, PREFIX_LENGTH};
use crate::record::Record;
use crate::tool::{IP, Tool};
use crate::{Place, Result, partition};

/// Creates the switch, then a namespace for each place, connected to the switch and with its address.
///
/// # Errors
/// The errors of [`crate::tool::Tool::run`]. Resources created before the failure stay.
pub fn make(layout: &Layout, record: &Record) -> Result<()> {
    let ip = IP.of_lab(&record.id);
    make_switch(ip, &layout.switch())?;
    for place in Place::all(record.hosts) {
        make_place(ip, layout, place)?;
    }
    partition::prepare(layout, &record.id)
}

/// Deletes every named namespace of the lab. A namespace lives on while processes are in it.
///
/// # Errors
/// The errors of [`crate::tool::Tool::run`].
pub fn remove(layout: &Layout) -> Result<()> {
    namespaces(layout).iter().try_for_each(|name| IP.run(&["netns", "delete", name]).map(drop))
}

/// The names of the existing namespaces of the lab.
#[must_use]
pub fn namespaces(layout: &Layout) -> Vec<String> {
    let prefix = layout.namespace_prefix();
    let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort();
    names
}

/// The file of the namespace `name`.
#[must_use]
pub fn namespace_file(name: &str) -> PathBuf {
    PathBuf::from(NAMESPACES).join(name)
}

fn make_switch(ip: Tool<'_>, namespace: &str) -> Result<()> {
    ip.run(&["netns", "add", namespace])?;
    batch(ip, namespace, "link add switch type bridge forward_delay 0 mcast_snooping 0\nlink set switch up\n")
}

fn make_place(ip: Tool<'_>, layout: &Layout, place: Place) -> Result<()> {
    let (namespace, switch, port) = (layout.namespace(place), layout.switch(), layout::port(place));
    ip.run(&["netns", "add", &namespace])?;
    let inner = if place == Place::Coordinator { "eth0" } else { "up0" };
    let cable = format!("link add {inner} type veth peer name {port} netns {switch}\n");
    batch(ip, &namespace, &(cable + &inside(place, inner)))?;
    batch(ip, &switch, &format!("link set {port} master switch up\n"))
}

/// The configuration inside a place: a host's address is on its bridge, to which instances
/// are connected too; the coordinator's is directly on its interface.
fn inside(place: Place, inner: &str) -> String {
    let (address, mac) = (layout::address(place), layout::mac(place));
    let mut lines = "link set lo up\n".to_owned();
    let carrier = match place {
        Place::Coordinator => {
            let _ = writeln!(lines, "link set {inner} address {mac}");
            inner
        }
        Place::Host(_) => {
            let _ =
                writeln!(lines, "link add br0 address {mac} type bridge forward_delay 0 mcast_snooping 0");
            let _ = writeln!(lines, "link set {inner} master br0");
            "br0"
        }
    };
    let _ = writeln!(lines, "address add {address}/{PREFIX_LENGTH} dev {carrier}");
    let _ = writeln!(lines, "link set {inner} up\nlink set {carrier} up");
    lines
}

fn batch(ip: Tool<'_>, namespace: &str, lines: &str) -> Result<()> {
    ip.feed(&["-netns", namespace, "-batch", "-"], lines).map(drop)
}
