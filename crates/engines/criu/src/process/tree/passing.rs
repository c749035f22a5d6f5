//! Passes the pages of a dump to their sink while CRIU dumps.

use std::io;
use std::net::Shutdown;
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::criu::pages::archives;
use crate::criu::pages::fork_advice::NotCopied;
use crate::criu::pages::page_server::{self, Failure};
use crate::criu::run::Criu;
use crate::engine::Watch;
use crate::error::{Doing, Error, Result};
use crate::memory::MemorySink;

/// Lets CRIU continue until the tree is dumped. Gives `memory` the pages meanwhile, and then the archives in `images`, if it
/// accepts them.
pub fn pass_pages(
    criu: &mut Criu,
    images: &Path,
    (memory, not_copied): (&dyn MemorySink, &NotCopied),
    watch: &Watch<'_>,
    end: Instant,
) -> Result<()> {
    memory.begin().map_err(Error::NotTaken)?;
    let pages = criu.take_pages().ok_or(io::ErrorKind::NotConnected);
    let pages = pages.map_err(io::Error::from).doing(|| "reading the pages of the dump".into())?;
    let near = pages.try_clone().doing(|| "reading the pages of the dump".into())?;
    let (dumped, served) = thread::scope(|scope| {
        let serving = scope.spawn(|| page_server::serve(pages, memory, not_copied));
        let dumped = criu.answer(true).and_then(|()| criu.run_to(Some("post-dump"), watch, end));
        if dumped.is_err() {
            // Ends the stream even if another process holds CRIU's end open.
            let _closed = near.shutdown(Shutdown::Both);
        }
        (dumped, serving.join().unwrap_or_else(|_| Err(Failure::Criu(io::ErrorKind::Other.into()))))
    });
    match (dumped, served) {
        (Err(Error::Cancelled), _) => Err(Error::Cancelled),
        (_, Err(Failure::Sink(error))) => Err(Error::NotTaken(error)),
        (Err(error), _) => Err(error),
        (_, Err(Failure::Criu(error))) => Err(error).doing(|| "reading the pages of the dump".into()),
        (Ok(()), Ok(())) => {
            if memory.takes_archives() {
                archives::tell(images, memory).map_err(Error::NotTaken)?;
            }
            memory.end().map_err(Error::NotTaken)
        }
    }
}
