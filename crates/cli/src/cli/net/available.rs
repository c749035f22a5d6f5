//! `transhume net devices --available`

use std::process::ExitCode;

use api::{Event, NetAvailable, NetAvailableKind, Request};
use serde::Serialize;

use super::show::tell_unanswered;
use crate::cli::target::Target;
use crate::failure::{Result, unexpected};
use crate::{output, table};

/// A device, as `--json` prints it.
#[derive(Serialize)]
struct Listed {
    host: String,
    #[serde(flatten)]
    device: NetAvailable,
}

/// Lists the devices that can be attached.
pub fn list(target: &Target, json: bool) -> Result<ExitCode> {
    let (mut client, mut listed) = (target.send(&Request::Available)?, Vec::new());
    loop {
        match client.next_event()? {
            Event::NetAvailable { host, devices } => {
                listed.extend(devices.into_iter().map(|device| Listed { host: host.clone(), device }));
            }
            Event::NetUnanswered { hosts } => tell_unanswered(hosts.iter().map(String::as_str)),
            Event::Done => break,
            Event::Failed(failure) => return Err(failure.into()),
            event => return Err(unexpected(&event)),
        }
    }
    if json {
        output::json(&listed)?;
    } else {
        let rows: Vec<_> = listed.iter().map(row).collect();
        output::write(table::render(["HOST", "DEVICE", "KIND", "MTU", "MAC"], &rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(Listed { host, device }: &Listed) -> [String; 5] {
    let kind = match device.kind {
        NetAvailableKind::Tap => "TAP",
        NetAvailableKind::OpenTap => "TAP in use by a program",
        NetAvailableKind::Bridge => "bridge (--bridge)",
    };
    [host.clone(), device.name.clone(), kind.into(), device.mtu_bytes.to_string(), device.mac.clone()]
}
