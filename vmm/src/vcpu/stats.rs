//! KVM's own statistics of a vCPU, by file descriptor: Linux 5.14 and later
//! (Documentation/virt/kvm/api.rst, 4.133, KVM_GET_STATS_FD).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use kvm_bindings::{KVM_STATS_TYPE_LINEAR_HIST, KVM_STATS_TYPE_MASK, KVMIO};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;

use exoprobe_guest::VcpuError;

ioctl_io_nr!(KVM_GET_STATS_FD, KVMIO, 0xce);

/// More than any kernel's statistics: some 50 of 64 bytes, and their values.
const SIZE_MAX: usize = 64 << 10;
/// `struct kvm_stats_desc` before its name.
const DESCRIPTOR_LEN: usize = 16;

/// Why there are no statistics.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// There is no such vCPU.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// This kernel does not support them.
    #[error("KVM has no statistics of a vCPU (KVM_GET_STATS_FD; Linux 5.14 or later has it): {0}")]
    Refused(kvm_ioctls::Error),
    /// They could not be read.
    #[error("reading KVM's statistics: {0}")]
    Read(#[from] std::io::Error),
    /// They do not have the format of api.rst.
    #[error("KVM's statistics are malformed: {0}")]
    Malformed(&'static str),
}

/// The open statistics of one vCPU.
pub(super) struct KvmStats(Result<File, kvm_ioctls::Error>);

impl KvmStats {
    /// Opens them; keeps a refusal for the readers. The ioctl takes the vCPU's mutex, which KVM_RUN
    /// holds, so this must precede the vCPU's run.
    pub(super) fn open(vcpu: &VcpuFd) -> Self {
        // SAFETY: the descriptor is a vCPU's and the ioctl takes no argument.
        let fd = unsafe { ioctl(vcpu, KVM_GET_STATS_FD()) };
        if fd < 0 {
            return Self(Err(kvm_ioctls::Error::last()));
        }
        // SAFETY: KVM made the descriptor for this call; nothing else has it.
        Self(Ok(unsafe { File::from_raw_fd(fd) }))
    }

    /// All values now.
    pub(super) fn read(&self) -> Result<BTreeMap<String, u64>, StatsError> {
        let file = self.0.as_ref().map_err(|error| StatsError::Refused(*error))?;
        let mut bytes = vec![0; SIZE_MAX];
        let mut len = 0;
        while len < bytes.len() {
            match file.read_at(&mut bytes[len..], len as u64)? {
                0 => break,
                more => len += more,
            }
        }
        parse(&bytes[..len])
    }
}

/// Little-endian fields at any offset.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn at<const N: usize>(&self, offset: usize) -> Result<[u8; N], StatsError> {
        let end = offset.checked_add(N).ok_or(StatsError::Malformed("an offset overflows"))?;
        let bytes = self.0.get(offset..end).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or(StatsError::Malformed("something lies after their end"))
    }

    fn u16(&self, offset: usize) -> Result<u16, StatsError> {
        self.at(offset).map(u16::from_le_bytes)
    }

    fn u32(&self, offset: usize) -> Result<usize, StatsError> {
        self.at(offset).map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    fn u64(&self, offset: usize) -> Result<u64, StatsError> {
        self.at(offset).map(u64::from_le_bytes)
    }
}

/// Reads header, descriptors and values of one number each; skips histograms.
fn parse(bytes: &[u8]) -> Result<BTreeMap<String, u64>, StatsError> {
    // struct kvm_stats_header: flags, name_size, num_desc, id_offset, desc_offset, data_offset.
    let fields = Fields(bytes);
    let (name_len, count) = (fields.u32(4)?, fields.u32(8)?);
    let (descriptors, data) = (fields.u32(16)?, fields.u32(20)?);
    if count.saturating_mul(DESCRIPTOR_LEN.saturating_add(name_len)) > bytes.len() {
        return Err(StatsError::Malformed("more descriptors than bytes"));
    }
    let mut all = BTreeMap::new();
    for index in 0..count {
        // struct kvm_stats_desc: flags, exponent (2 bytes), size (2), offset, bucket_size, name.
        let at = descriptors + index * (DESCRIPTOR_LEN + name_len);
        let kind = fields.u32(at)? & KVM_STATS_TYPE_MASK as usize;
        if kind >= KVM_STATS_TYPE_LINEAR_HIST as usize || fields.u16(at + 6)? != 1 {
            continue;
        }
        let value = fields.u64(data + fields.u32(at + 8)?)?;
        let name = at + DESCRIPTOR_LEN..at + DESCRIPTOR_LEN + name_len;
        let name = bytes.get(name).ok_or(StatsError::Malformed("a name lies after their end"))?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        all.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME_LEN: usize = 8;

    /// A header, the descriptors `(type, size, offset, name)` and data.
    fn file(descriptors: &[(u32, u16, u32, &str)], data: &[u64]) -> Vec<u8> {
        let start = 24 + 8;
        let data_at = start + descriptors.len() * (DESCRIPTOR_LEN + NAME_LEN);
        let mut bytes = Vec::new();
        for field in [0, NAME_LEN, descriptors.len(), 24, start, data_at] {
            bytes.extend(u32::try_from(field).unwrap().to_le_bytes());
        }
        bytes.extend(*b"kvm-1\0\0\0");
        for (flags, size, offset, name) in descriptors {
            bytes.extend(flags.to_le_bytes());
            bytes.extend((-9i16).to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            bytes.extend(0u32.to_le_bytes());
            let mut field = [0; NAME_LEN];
            field[..name.len()].copy_from_slice(name.as_bytes());
            bytes.extend(field);
        }
        data.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    #[test]
    fn values_have_their_names_and_histograms_are_left_out() {
        let descriptors = [(0, 1, 8, "exits"), (3, 2, 16, "hist"), (1, 1, 0, "now")];
        let all = parse(&file(&descriptors, &[7, 1 << 40, 1, 2])).unwrap();
        let expected = [("exits".to_owned(), 1 << 40), ("now".to_owned(), 7)];
        assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);
        let full = parse(&file(&[(0, 1, 0, "eightlen")], &[1])).unwrap();
        assert_eq!(full["eightlen"], 1, "a name without a NUL");
    }

    #[test]
    fn what_lies_outside_is_an_error() {
        let good = file(&[(0, 1, 0, "exits")], &[7]);
        for len in 0..good.len() {
            assert!(parse(&good[..len]).is_err(), "cut to {len} bytes");
        }
        assert!(parse(&file(&[(0, 1, 1, "exits")], &[7])).is_err());
        assert!(parse(&file(&[(0, 1, u32::MAX, "exits")], &[7])).is_err());
        let mut many = good;
        many[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(parse(&many), Err(StatsError::Malformed("more descriptors than bytes"))));
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn so_do_any_bytes_in_a_good_file(at in 0..100usize, byte in any::<u8>()) {
            let mut bytes = file(&[(0, 1, 0, "exits"), (1, 1, 8, "now")], &[7, 8]);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = parse(&bytes);
        }
    }
}
