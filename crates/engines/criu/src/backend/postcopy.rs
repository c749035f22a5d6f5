//! The destination's end of post-copy: passes the requests of an instance's pager and the pages for it (see [`crate::pager`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use engine_api::{PAGE, Postcopy, PostcopyEvent, Result, Wanted};
use fabric::seqpacket;
use instance::{InstanceName, Region};

use crate::ProcessEngine;
use crate::memory::Owner;
use crate::pager::wire::{MAX_PAGES, Message};

/// The connection to the pager of an instance.
pub struct PagerLink {
    pub engine: Arc<ProcessEngine>,
    pub name: InstanceName,
    pub connection: OwnedFd,
}

impl PagerLink {
    fn say(&self, packet: &[u8]) -> io::Result<()> {
        seqpacket::send(self.connection.as_fd(), packet, &[])
    }
}

impl Postcopy for PagerLink {
    fn begin(&self) -> io::Result<()> {
        self.say(&Message::Serve.encode())
    }

    fn next(&self) -> io::Result<Option<PostcopyEvent>> {
        loop {
            let packet = seqpacket::receive(self.connection.as_fd())?.bytes;
            if packet.is_empty() {
                return Ok(None);
            }
            return Ok(Some(match Message::decode(&packet)?.0 {
                Message::Want { pid, address, pages, ahead } => {
                    let region = Owner::Process(pid).region()?;
                    PostcopyEvent::Wanted(Wanted { region, address, pages, ahead })
                }
                Message::Progress(fetched) => PostcopyEvent::Progress(fetched),
                Message::Whole(fetched) => PostcopyEvent::Whole(fetched),
                _ => continue,
            }));
        }
    }

    fn supply(&self, region: Region, address: u64, data: &[u8]) -> io::Result<()> {
        let pages = (data.len() / PAGE) as u64;
        match Owner::of(region)? {
            Owner::Process(pid) if pages <= MAX_PAGES => {
                self.say(&[&Message::Pages { pid, address, pages }.encode()[..], data].concat())
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn finish(&self) -> Result<()> {
        Ok(self.engine.finish_postcopy(&self.name)?)
    }
}
