//go:build !man

package main

import "github.com/spf13/cobra"

// extra returns no command: what writes the manual pages is not linked into the binary.
func extra() []*cobra.Command { return nil }
