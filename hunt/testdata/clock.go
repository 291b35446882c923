package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

// ahead is how many seconds Now adds: eight bytes of the file that $CLOCK_FILE names, which the
// hunt writes. They are mapped, so that a step is complete when the write returns.
var ahead = mapped()

func mapped() *atomic.Int64 {
	name, _ := syscall.Getenv("CLOCK_FILE")
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("CLOCK_FILE: " + err.Error())
	}
	defer syscall.Close(fd)
	memory, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("CLOCK_FILE: " + err.Error())
	}
	return (*atomic.Int64)(unsafe.Pointer(&memory[0]))
}
