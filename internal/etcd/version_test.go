package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStaleReads(t *testing.T) {
	t.Parallel()
	for version, upgrade := range map[string]string{
		"3.7.3": "", "3.6.9": "", "3.6.12": "", "3.6.8": "3.6.9", "3.6.0-rc.1": "3.6.9", "3.5.28": "", "3.5.27": "3.5.28",
		"3.4.42": "3.4.43", "3.3.27": "", "": "", "main": "", "4.0.0": "",
	} {
		require.Equal(t, upgrade, StaleReads(version), version)
	}
}
