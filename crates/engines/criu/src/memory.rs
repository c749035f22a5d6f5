//! The memory of an instance in transfer: from pre-copy rounds while it runs, and at last from its dump.

use std::io;

use instance::Region;

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// The owner of pages, as CRIU's images name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// The process that has this PID in the instance; addresses are its own.
    Process(u32),
    /// Anonymous shared memory, by its number; addresses count from its beginning.
    Shared(u64),
    /// The archive of a container's file system in memory, by its device number at the source; the rest of its last page is zero.
    Archive(u32),
}

impl Owner {
    /// The two highest bits of a region's number are the kind of owner; the others are its number.
    const SHIFT: u32 = 62;
    const PROCESS: u64 = 0;
    const SHARED: u64 = 1;
    const ARCHIVE: u64 = 2;

    /// The region that names its pages on the wire.
    ///
    /// # Errors
    /// `InvalidInput` if its number is longer than any that the kernel gives.
    pub fn region(self) -> io::Result<Region> {
        let (kind, number) = match self {
            Self::Process(pid) => (Self::PROCESS, pid.into()),
            Self::Shared(number) => (Self::SHARED, number),
            Self::Archive(number) => (Self::ARCHIVE, number.into()),
        };
        let fits = number >> Self::SHIFT == 0;
        fits.then_some(Region(kind << Self::SHIFT | number)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// The owner of the pages that `region` names.
    ///
    /// # Errors
    /// `InvalidData` if `region` names no owner.
    pub fn of(Region(region): Region) -> io::Result<Self> {
        let number = region & !(u64::MAX << Self::SHIFT);
        let short = u32::try_from(number);
        match (region >> Self::SHIFT, short) {
            (Self::PROCESS, Ok(pid)) => Ok(Self::Process(pid)),
            (Self::SHARED, _) => Ok(Self::Shared(number)),
            (Self::ARCHIVE, Ok(number)) => Ok(Self::Archive(number)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Receives the memory of an instance in accounts. The last account is the complete one.
pub trait MemorySink: Send + Sync {
    /// Begins an account. Pages of earlier accounts may be outdated, but remain useful for comparison.
    ///
    /// # Errors
    /// If the sink can accept nothing.
    fn begin(&self) -> io::Result<()>;

    /// Announces an owner, which may have no pages.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn open(&self, owner: Owner) -> io::Result<()>;

    /// Whether it accepts archives of file systems too. Otherwise they are among the images.
    fn takes_archives(&self) -> bool {
        false
    }

    /// Announces how many bytes of pages to expect in the account, as far as that is known.
    fn expect(&self, _bytes: u64) {}

    /// Accepts consecutive whole pages that begin at `address`.
    ///
    /// # Errors
    /// If it does not accept them. It then accepts nothing more.
    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Whether [`MemorySink::take_later`] leaves pages at the source.
    fn leaves_pages(&self) -> bool {
        false
    }

    /// Like [`MemorySink::take`], for pages that can arrive after the restore: a process that touches one waits for it.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn take_later(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        self.take(owner, address, pages)
    }

    /// Ends the account.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn end(&self) -> io::Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_a_region_of_its_own() {
        let owners = [
            Owner::Process(0),
            Owner::Process(u32::MAX),
            Owner::Shared(0),
            Owner::Shared(u64::MAX >> 2),
            Owner::Archive(0),
            Owner::Archive(u32::MAX),
        ];
        for owner in owners {
            assert_eq!(Owner::of(owner.region().unwrap()).unwrap(), owner);
        }
        assert!(Owner::Shared(1 << 62).region().is_err());
        assert!(
            [u64::MAX, 1 << 40, 2 << 62 | 1 << 40].iter().all(|region| Owner::of(Region(*region)).is_err())
        );
    }
}
