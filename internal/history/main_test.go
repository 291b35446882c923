package history

import (
	"testing"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }
