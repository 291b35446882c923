package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check or print the configuration",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newConfigCheck(), newConfigPrint())
	return cmd
}

func newConfigCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration",
		Long: `Read the configuration as serve does, from the same flags, environment and file.
Exit with 0 and print which file was read, or with 2 and the first error.
No other file is opened: certificates and password files are not checked.`,
		Args: noArguments(fileHint),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, source, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if source == "" {
				source = "no file: flags, environment and defaults"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "ok (%s)\n", source)
			return err
		},
	}
	config.Flags(cmd.Flags())
	return cmd
}

func newConfigPrint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the effective configuration, without secrets",
		Long: `Print every key with the value that serve would use, as a configuration file.
The password is replaced by <redacted>: restore it before you use the output as
a configuration file.`,
		Args: noArguments(fileHint),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			text, err := c.YAML()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	config.Flags(cmd.Flags())
	return cmd
}
