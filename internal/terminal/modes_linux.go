package terminal

import "golang.org/x/sys/unix"

// The second drops what was typed and not read.
const getModes, setModes = unix.TCGETS, unix.TCSETSF
