//! The memory of an instance on its way: from looks at it while it runs, and at last from its dump.

use std::io;

use instance::Region;

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Whose pages they are, as CRIU's images call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// The process that has this PID in the instance; addresses are its own.
    Process(u32),
    /// Memory without a file that processes share, by its number; addresses count from its beginning.
    Shared(u64),
    /// The archive of a container's file system in memory, by the number of its device at the source; of its last page the rest is zeroes.
    Archive(u32),
}

impl Owner {
    /// The two highest bits of a region's number say what the others count.
    const SHIFT: u32 = 62;
    const PROCESS: u64 = 0;
    const SHARED: u64 = 1;
    const ARCHIVE: u64 = 2;

    /// What its pages are sent as.
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

    /// Whose pages are sent as `region`.
    ///
    /// # Errors
    /// `InvalidData` if nobody's are.
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

/// Takes the memory of an instance, in accounts of which the last one counts.
pub trait MemorySink: Send + Sync {
    /// An account begins. What those before it have told may be void, and is still worth knowing.
    ///
    /// # Errors
    /// If the sink can take nothing.
    fn begin(&self) -> io::Result<()>;

    /// Says that there is this owner, which may have no pages.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn open(&self, owner: Owner) -> io::Result<()>;

    /// Whether it takes archives of file systems as well. Otherwise they are among the images.
    fn takes_archives(&self) -> bool {
        false
    }

    /// Says how many bytes of pages the account will have, as far as that is known.
    fn expect(&self, _bytes: u64) {}

    /// Takes whole pages that lie at `address`, one behind the other.
    ///
    /// # Errors
    /// If they are not taken; then nothing more is.
    fn take(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()>;

    /// Whether [`MemorySink::take_later`] leaves pages where they are.
    fn leaves_pages(&self) -> bool {
        false
    }

    /// As [`MemorySink::take`], of pages that an instance can be restored without: whoever touches one will wait for it.
    ///
    /// # Errors
    /// As [`MemorySink::take`].
    fn take_later(&self, owner: Owner, address: u64, pages: &[u8]) -> io::Result<()> {
        self.take(owner, address, pages)
    }

    /// All of the account has been told.
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
