//! Requests of the driver (5.2.6): a header, data, and a byte for the outcome. The driver is an
//! adversary: lengths, sectors and addresses are checked, and each request gets an outcome if it
//! has room for one.

use std::io::{self, Write};
use std::ops::Deref;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
};
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::{ByteValued, GuestMemoryMmap, Le32, Le64};

use super::Disk;
use super::buffers::Buffers;
use super::disk::SECTOR;
use super::host_file::Waiting;

/// Most data descriptors of a request, and bytes of each, as the configuration space says. Together
/// they bound the time of one request: a device stops between two.
pub(crate) const SEG_MAX: u32 = 254;
pub(crate) const SIZE_MAX: u32 = 1 << 20;
/// Most segments of a discard or of writing zeroes, as the configuration space says.
pub(crate) const SEGMENTS_MAX: u32 = 16;
/// Most sectors of a segment of a discard: 1 GiB.
pub(crate) const DISCARD_SECTORS_MAX: u32 = 1 << 21;
/// Most sectors of a segment of zeroes: 16 MiB. Where the host's file system cannot make zeroes,
/// they are written, so 16 segments are as long as the longest request with data.
pub(crate) const ZEROES_SECTORS_MAX: u32 = 1 << 15;

/// `struct virtio_blk_req`, without its data and outcome.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Header {
    kind: Le32,
    reserved: Le32,
    sector: Le64,
}

/// `struct virtio_blk_discard_write_zeroes`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Segment {
    sector: Le64,
    sectors: Le32,
    flags: Le32,
}

// SAFETY: both are plain numbers without padding; every pattern of bits is one.
unsafe impl ByteValued for Header {}
// SAFETY: as above.
unsafe impl ByteValued for Segment {}

/// Why a request has another outcome than OK.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    /// Not a request that this device knows, or not on a disk that is only read.
    #[error("not supported")]
    Unsupported,
    /// The host's error, or a request that breaks the device's rules.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn broken(message: &'static str) -> Refusal {
    io::Error::new(io::ErrorKind::InvalidInput, message).into()
}

fn outside() -> Refusal {
    broken("buffers outside RAM")
}

/// A request of the driver; several may be carried out at once.
pub(super) type Chain<M> = DescriptorChain<M>;

/// Carries a request out. Returns the bytes that were written to its buffers, the outcome among
/// them: 0 if the chain has no room even for that; `None` if the request would wait and may not,
/// and then it can be repeated.
pub(crate) fn serve<M>(
    disk: &Disk,
    id: &str,
    memory: &GuestMemoryMmap,
    chain: &Chain<M>,
    waiting: Waiting,
) -> Option<u32>
where
    M: Deref<Target = GuestMemoryMmap> + Clone,
{
    let readable = Reader::new(memory, chain.clone());
    let Ok(mut writable) = Writer::new(memory, chain.clone()) else { return Some(0) };
    let Some(room) = writable.available_bytes().checked_sub(1) else { return Some(0) };
    let Ok(mut outcome) = writable.split_at(room) else { return Some(0) };
    let result = match readable {
        Ok(mut readable) => {
            let mut request = Request { disk, memory, chain, waiting };
            request.carry_out(id, &mut readable, &mut writable)
        }
        Err(_) => Err(outside()),
    };
    let (status, written) = match result {
        Ok(written) => (VIRTIO_BLK_S_OK, written),
        Err(Refusal::Unsupported) => (VIRTIO_BLK_S_UNSUPP, 0),
        Err(Refusal::Io(error))
            if waiting == Waiting::Refused && error.kind() == io::ErrorKind::WouldBlock =>
        {
            return None;
        }
        Err(Refusal::Io(error)) => {
            tracing::debug!(%error, "disk request");
            (VIRTIO_BLK_S_IOERR, 0)
        }
    };
    let status = u8::try_from(status).expect("0 to 2");
    if outcome.write_all(&[status]).is_err() {
        return Some(0);
    }
    Some(u32::try_from(written + 1).unwrap_or(u32::MAX))
}

/// A request that is carried out.
struct Request<'a, M> {
    disk: &'a Disk,
    memory: &'a GuestMemoryMmap,
    chain: &'a Chain<M>,
    waiting: Waiting,
}

impl<M: Deref<Target = GuestMemoryMmap> + Clone> Request<'_, M> {
    /// Returns the bytes that were written to `writable`, which is without the outcome.
    fn carry_out(
        &mut self,
        id: &str,
        readable: &mut Reader<'_>,
        writable: &mut Writer<'_>,
    ) -> Result<usize, Refusal> {
        let header: Header = readable.read_obj()?;
        let sector = header.sector.to_native();
        match header.kind.to_native() {
            VIRTIO_BLK_T_IN => self.read(sector, writable.available_bytes()),
            kind @ (VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES)
                if self.disk.is_read_only() =>
            {
                tracing::debug!(kind, "a disk that is only read");
                Err(broken("the disk is only read"))
            }
            VIRTIO_BLK_T_OUT => self.write(sector, readable.bytes_read()),
            VIRTIO_BLK_T_FLUSH => {
                self.wait()?;
                self.disk.flush()?;
                Ok(0)
            }
            VIRTIO_BLK_T_GET_ID => {
                let mut text = [0; VIRTIO_BLK_ID_BYTES as usize];
                let len = id.len().min(text.len());
                text[..len].copy_from_slice(&id.as_bytes()[..len]);
                writable.write_all(&text)?;
                Ok(text.len())
            }
            VIRTIO_BLK_T_DISCARD => {
                for (offset, len) in segments(self.disk, readable, DISCARD_SECTORS_MAX)? {
                    self.wait()?;
                    self.disk.discard(offset, len)?;
                }
                Ok(0)
            }
            VIRTIO_BLK_T_WRITE_ZEROES => {
                for (offset, len) in segments(self.disk, readable, ZEROES_SECTORS_MAX)? {
                    self.wait()?;
                    self.disk.write_zeroes(offset, len)?;
                }
                Ok(0)
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the request may not wait.
    fn wait(&self) -> io::Result<()> {
        match self.waiting {
            Waiting::Allowed => Ok(()),
            Waiting::Refused => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Reads as many bytes as there is room for. Returns them.
    fn read(&self, sector: u64, room: usize) -> Result<usize, Refusal> {
        // The driver may have changed the descriptors since: these are checked anew.
        let buffers = Buffers::new(self.memory, self.chain.clone().writable());
        let data = buffers.map_err(|_| outside())?.take(room);
        self.disk.read(range(self.disk, sector, data.len())?, &data, self.waiting)?;
        Ok(data.len())
    }

    /// Writes all bytes after the header, of which so many were read.
    fn write(&self, sector: u64, header: usize) -> Result<usize, Refusal> {
        let buffers = Buffers::new(self.memory, self.chain.clone().readable());
        let data = buffers.map_err(|_| outside())?.skip(header);
        self.disk.write(range(self.disk, sector, data.len())?, &data, self.waiting)?;
        Ok(0)
    }
}

/// The byte offset of `len` bytes at `sector`, if they are whole sectors of the disk.
fn range(disk: &Disk, sector: u64, len: usize) -> Result<u64, Refusal> {
    let bytes = len as u64;
    if !bytes.is_multiple_of(SECTOR) {
        return Err(broken("not whole sectors"));
    }
    if bytes > u64::from(SEG_MAX) * u64::from(SIZE_MAX) {
        return Err(broken("more than a request may move"));
    }
    let end = sector.checked_add(bytes / SECTOR).ok_or_else(|| broken("beyond the disk"))?;
    if end > disk.sectors() {
        return Err(broken("beyond the disk"));
    }
    Ok(sector * SECTOR)
}

/// The byte ranges of a discard, all checked before the first is carried out.
fn segments(
    disk: &Disk,
    readable: &mut Reader<'_>,
    sectors_max: u32,
) -> Result<Vec<(u64, u64)>, Refusal> {
    let count = readable.available_bytes() / size_of::<Segment>();
    if count == 0 || count > SEGMENTS_MAX as usize {
        return Err(broken("no segment, or too many"));
    }
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let segment: Segment = readable.read_obj()?;
        let (sector, sectors) = (segment.sector.to_native(), segment.sectors.to_native());
        // Bit 0 asks to give up the space of zeroes; no other is defined.
        if segment.flags.to_native() > 1 {
            return Err(Refusal::Unsupported);
        }
        let end = sector.checked_add(u64::from(sectors)).filter(|end| *end <= disk.sectors());
        if sectors > sectors_max || end.is_none() {
            return Err(broken("a segment beyond the disk"));
        }
        if sectors > 0 {
            found.push((sector * SECTOR, u64::from(sectors) * SECTOR));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

    use super::*;
    use crate::config::DiskMode::{self, ReadOnly, ReadWrite};

    /// Sectors of the disk: each byte of a sector is the sector's number.
    const SECTORS: u8 = 16;
    /// Address of the buffers: after the queue.
    const BUFFERS: u64 = 0x10_0000;
    const RAM: usize = 0x20_0000;
    const OUTCOME: u64 = BUFFERS + 0x8_0000;

    struct Fixture {
        disk: Disk,
        memory: GuestMemoryMmap,
        dir: tempfile::TempDir,
    }

    fn fixture(mode: DiskMode) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let content: Vec<u8> = (0..SECTORS).flat_map(|sector| [sector; 512]).collect();
        std::fs::write(&path, content).unwrap();
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM)]).unwrap();
        Fixture { disk: Disk::open(&path, mode).unwrap(), memory, dir }
    }

    fn descriptor(address: u64, len: usize, is_written: bool) -> RawDescriptor {
        let flags = if is_written { u16::try_from(VRING_DESC_F_WRITE).unwrap() } else { 0 };
        Descriptor::new(address, u32::try_from(len).unwrap(), flags, 0).into()
    }

    impl Fixture {
        fn serve(&self, chain: &[RawDescriptor]) -> u32 {
            let queue = MockSplitQueue::new(&self.memory, 16);
            let chain = queue.build_desc_chain(chain).unwrap();
            serve(&self.disk, "disk0", &self.memory, &chain, Waiting::Allowed).unwrap()
        }

        /// A request with its header, what the device reads, and room for what it writes.
        fn request(&self, kind: u32, sector: u64, data: &[u8], room: usize) -> (u32, Vec<u8>, u32) {
            let header = Header { kind: kind.into(), reserved: 0.into(), sector: sector.into() };
            self.memory.write_obj(header, GuestAddress(BUFFERS)).unwrap();
            self.memory.write_slice(data, GuestAddress(BUFFERS + 16)).unwrap();
            self.memory.write_obj(0xee_u8, GuestAddress(OUTCOME)).unwrap();
            let result = BUFFERS + 0x4_0000;
            let written = self.serve(&[
                descriptor(BUFFERS, 16, false),
                descriptor(BUFFERS + 16, data.len(), false),
                descriptor(result, room, true),
                descriptor(OUTCOME, 1, true),
            ]);
            let mut found = vec![0; room];
            self.memory.read_slice(&mut found, GuestAddress(result)).unwrap();
            (self.memory.read_obj::<u8>(GuestAddress(OUTCOME)).unwrap().into(), found, written)
        }
    }

    const OK: u32 = VIRTIO_BLK_S_OK;
    const IOERR: u32 = VIRTIO_BLK_S_IOERR;
    const UNSUPP: u32 = VIRTIO_BLK_S_UNSUPP;

    #[test]
    fn sectors_are_read_written_and_named() {
        let disk = fixture(ReadWrite);
        let (outcome, found, written) = disk.request(VIRTIO_BLK_T_IN, 3, &[], 1024);
        assert_eq!((outcome, found[0], found[511], found[512], written), (OK, 3, 3, 4, 1025));
        assert_eq!(disk.request(VIRTIO_BLK_T_OUT, 15, &[0xaa; 512], 0).0, OK);
        assert_eq!(disk.request(VIRTIO_BLK_T_IN, 15, &[], 512).1, [0xaa; 512]);
        assert_eq!(disk.request(VIRTIO_BLK_T_FLUSH, 0, &[], 0).0, OK);
        let (outcome, id, _) = disk.request(VIRTIO_BLK_T_GET_ID, 0, &[], 20);
        assert_eq!((outcome, &id[..6]), (OK, &b"disk0\0"[..]));
        let on_host = std::fs::read(disk.dir.path().join("disk")).unwrap();
        assert_eq!((on_host[15 * 512], on_host[14 * 512]), (0xaa, 14));
    }

    fn segment(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
        let words = [sectors.to_le_bytes(), flags.to_le_bytes()].concat();
        [sector.to_le_bytes().to_vec(), words].concat()
    }

    #[test]
    fn segments_are_zeroed_all_or_none() {
        let disk = fixture(ReadWrite);
        let two = [segment(2, 1, 0), segment(4, 2, 0)].concat();
        assert_eq!(disk.request(VIRTIO_BLK_T_WRITE_ZEROES, 0, &two, 0).0, OK);
        let found = disk.request(VIRTIO_BLK_T_IN, 0, &[], 8 * 512).1;
        let sectors: Vec<u8> = found.chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(sectors, [0, 1, 0, 3, 0, 0, 6, 7]);
        let beyond = [segment(7, 1, 0), segment(15, 2, 0)].concat();
        assert_eq!(disk.request(VIRTIO_BLK_T_WRITE_ZEROES, 0, &beyond, 0).0, IOERR);
        assert_eq!(disk.request(VIRTIO_BLK_T_IN, 7, &[], 512).1, [7; 512], "none was carried out");
        for wrong in [segment(u64::MAX, 1, 0), segment(0, u32::MAX, 0), Vec::new()] {
            assert_eq!(disk.request(VIRTIO_BLK_T_DISCARD, 0, &wrong, 0).0, IOERR, "{wrong:?}");
        }
        assert_eq!(disk.request(VIRTIO_BLK_T_DISCARD, 0, &segment(0, 1, 2), 0).0, UNSUPP);
    }

    #[test]
    fn requests_beyond_the_disk_and_of_no_kind_are_refused() {
        let disk = fixture(ReadWrite);
        for (sector, room) in [(16, 512), (15, 1024), (u64::MAX, 512), (1 << 55, 512), (0, 100)] {
            assert_eq!(
                disk.request(VIRTIO_BLK_T_IN, sector, &[], room).0,
                IOERR,
                "{sector} {room}"
            );
        }
        assert_eq!(disk.request(VIRTIO_BLK_T_OUT, 16, &[1; 512], 0).0, IOERR);
        assert_eq!(disk.request(77, 0, &[], 512).0, UNSUPP);
        let short = fixture(ReadOnly);
        for kind in [VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES] {
            assert_eq!(short.request(kind, 0, &[0; 512], 0).0, IOERR, "a disk that is only read");
        }
        std::fs::File::options()
            .write(true)
            .open(short.dir.path().join("disk"))
            .unwrap()
            .set_len(512)
            .unwrap();
        assert_eq!(short.request(VIRTIO_BLK_T_IN, 1, &[], 512).0, IOERR, "it has become shorter");
    }

    #[test]
    fn a_full_medium_is_an_io_error_of_the_guest() {
        let mut full = fixture(ReadWrite);
        full.disk = Disk::on_a_full_medium(SECTORS.into());
        assert_eq!(full.request(VIRTIO_BLK_T_OUT, 3, &[1; 512], 0).0, IOERR);
        let zeroes = segment(0, 4, 0);
        assert_eq!(full.request(VIRTIO_BLK_T_WRITE_ZEROES, 0, &zeroes, 0).0, IOERR);
        assert_eq!(full.request(VIRTIO_BLK_T_IN, 3, &[], 512).0, OK, "it can be read");
    }

    #[test]
    fn a_chain_without_room_for_the_outcome_gets_none() {
        let disk = fixture(ReadWrite);
        assert_eq!(disk.serve(&[descriptor(BUFFERS, 16, false)]), 0);
        assert_eq!(disk.serve(&[descriptor(RAM as u64, 16, true)]), 0, "outside RAM");
        let header_outside = [descriptor(RAM as u64, 16, false), descriptor(OUTCOME, 1, true)];
        assert_eq!(disk.serve(&header_outside), 1);
        assert_eq!(u32::from(disk.memory.read_obj::<u8>(GuestAddress(OUTCOME)).unwrap()), IOERR);
    }

    proptest! {
        /// Whatever a driver writes: an outcome or none, no panic, and no other disk.
        #[test]
        fn any_chain_is_survived(
            kind in prop_oneof![Just(0_u32), Just(1), Just(4), Just(8), Just(11), Just(13), any::<u32>()],
            sector in prop_oneof![0..20_u64, any::<u64>()],
            parts in prop::collection::vec(
                (prop_oneof![0..RAM as u64, any::<u64>()], prop_oneof![0..2048_usize, 0..0x4_0000_usize], any::<bool>()),
                1..8,
            ),
        ) {
            let disk = fixture(ReadWrite);
            let header = Header { kind: kind.into(), reserved: 0.into(), sector: sector.into() };
            disk.memory.write_obj(header, GuestAddress(BUFFERS)).unwrap();
            let parts = parts.iter().map(|(address, len, written)| descriptor(*address, *len, *written));
            let chain: Vec<_> = std::iter::once(descriptor(BUFFERS, 16, false)).chain(parts).collect();
            disk.serve(&chain);
            prop_assert_eq!(std::fs::metadata(disk.dir.path().join("disk")).unwrap().len(), 16 * 512);
        }
    }
}
