package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// completeTree adds cobra's own commands and makes all commands strict: wrong arguments
// are usage errors, and a command that only groups others refuses unknown ones.
func completeTree(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	strict(root)
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			cmd.Args = knownTopic
		}
	}
}

func strict(cmd *cobra.Command) {
	if !cmd.Runnable() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

// noArguments refuses arguments. hint says what to use instead of one.
func noArguments(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("unexpected argument %q%s", args[0], hint)
	}
}

// fileHint is for commands that read the configuration.
const fileHint = ": --config names the configuration file"

// knownTopic accepts the names of commands only.
func knownTopic(cmd *cobra.Command, args []string) error {
	if _, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
		return usageError{fmt.Errorf("unknown help topic %q; see unlocker --help", strings.Join(args, " "))}
	}
	return nil
}

// usageTemplate wraps the help of flags, which may be long.
func usageTemplate(cobras string) string {
	return strings.ReplaceAll(cobras, ".FlagUsages ", ".FlagUsagesWrapped 100 ")
}
