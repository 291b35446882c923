//go:build ignore

// Command node stands in for the nodes and the controllers of a Kubernetes cluster, for tests
// of what kubectl prints. It creates the pods of Deployments, and runs the first container of
// each pod as a process of this machine: in a mount namespace with its volumes, with an address
// in 127.0.0.0/8. It serves what kubectl logs, exec and port-forward ask of a kubelet.
// deploy/helm/kubernetes.sh builds it.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	name = "node-1"
	port = 10250
	// template is the annotation with the hash of the template that a pod was made from.
	template = "node/template"
)

var deleteNow = meta.DeleteOptions{GracePeriodSeconds: new(int64)}

type node struct {
	api   *kubernetes.Clientset
	dir   string
	hosts string
	mu    sync.Mutex // of pods and of what they contain
	pods  map[types.NamespacedName]*pod
	last  int
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	dir := flag.String("dir", "", "for logs and volumes")
	cert, key := flag.String("cert", "", ""), flag.String("key", "", "")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	config.QPS = -1
	n := &node{api: kubernetes.NewForConfigOrDie(config), dir: *dir, pods: map[types.NamespacedName]*pod{}, last: 10}
	check(n.register())
	go n.serve(*cert, *key)
	for range time.Tick(300 * time.Millisecond) {
		if err := n.reconcile(context.Background()); err != nil {
			log.Print(err)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func (n *node) register() error {
	own, err := n.api.CoreV1().Nodes().Create(context.Background(), &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	own.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: "127.0.0.1"}}
	own.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	own.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}
	_, err = n.api.CoreV1().Nodes().UpdateStatus(context.Background(), own, meta.UpdateOptions{})
	return err
}

func (n *node) reconcile(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	pods, err := n.api.CoreV1().Pods("").List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	listed := map[types.UID]bool{}
	for i := range pods.Items {
		p := &pods.Items[i]
		listed[p.UID] = p.DeletionTimestamp == nil
		if p.DeletionTimestamp != nil {
			err = errors.Join(err, n.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, deleteNow))
			continue
		}
		err = errors.Join(err, n.advance(ctx, p))
	}
	for id, q := range n.pods {
		if !listed[q.uid] {
			q.stop()
			delete(n.pods, id)
		}
	}
	deployments, err2 := n.api.AppsV1().Deployments("").List(ctx, meta.ListOptions{})
	if err2 != nil {
		return err2
	}
	for i := range deployments.Items {
		err = errors.Join(err, n.roll(ctx, &deployments.Items[i], pods.Items))
	}
	return errors.Join(err, n.resolve(ctx))
}

// roll creates and deletes the pods of a Deployment, all at once.
func (n *node) roll(ctx context.Context, d *apps.Deployment, pods []core.Pod) (err error) {
	text, _ := d.Spec.Template.Marshal()
	hash := fmt.Sprintf("%x", sha256.Sum256(text))[:10]
	var current, ready int32
	for i := range pods {
		p := &pods[i]
		if p.Namespace != d.Namespace || !strings.HasPrefix(p.GenerateName, d.Name+"-") || p.DeletionTimestamp != nil {
			continue
		}
		if p.Annotations[template] != hash || current == *d.Spec.Replicas {
			err = errors.Join(err, n.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, deleteNow))
			continue
		}
		current++
		if len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == core.ConditionTrue {
			ready++
		}
	}
	for range *d.Spec.Replicas - current {
		p := &core.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Spec: *d.Spec.Template.Spec.DeepCopy()}
		p.GenerateName = d.Name + "-" + hash + "-"
		p.Annotations[template] = hash
		_, err2 := n.api.CoreV1().Pods(d.Namespace).Create(ctx, p, meta.CreateOptions{})
		err = errors.Join(err, err2)
	}
	available := core.ConditionFalse
	if ready == *d.Spec.Replicas {
		available = core.ConditionTrue
	}
	status := apps.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: current, UpdatedReplicas: current, ReadyReplicas: ready, AvailableReplicas: ready,
		UnavailableReplicas: *d.Spec.Replicas - ready, Conditions: []apps.DeploymentCondition{
			{Type: apps.DeploymentAvailable, Status: available}, {Type: apps.DeploymentProgressing, Status: available, Reason: "NewReplicaSetAvailable"}}}
	if fmt.Sprint(status) == fmt.Sprint(d.Status) {
		return err
	}
	d.Status = status
	_, err2 := n.api.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, meta.UpdateOptions{})
	return errors.Join(err, err2)
}

// resolve makes the names of Services those of a pod, in /etc/hosts.
func (n *node) resolve(ctx context.Context) error {
	services, err := n.api.CoreV1().Services("").List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	var lines []string
	for _, s := range services.Items {
		for id, q := range n.pods {
			if id.Namespace == s.Namespace && s.Spec.Selector != nil {
				lines = append(lines, fmt.Sprintf("%s %s.%s %[2]s.%[3]s.svc %[2]s.%[3]s.svc.cluster.local\n", q.ip, s.Name, s.Namespace))
			}
		}
	}
	slices.Sort(lines) // or the order of the map would be a change
	hosts := strings.Join(lines, "")
	if hosts == n.hosts {
		return nil
	}
	own, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return err
	}
	before, _, _ := strings.Cut(string(own), "# Services\n")
	// At once: who reads a part of the file does not know the host.
	if err := os.WriteFile("/etc/hosts.new", []byte(before+"# Services\n"+hosts), 0o644); err != nil {
		return err
	}
	n.hosts = hosts
	return os.Rename("/etc/hosts.new", "/etc/hosts")
}

// advance starts the container of a pod, or starts it again, and updates the status.
func (n *node) advance(ctx context.Context, p *core.Pod) error {
	if p.Spec.NodeName == "" {
		return n.api.CoreV1().Pods(p.Namespace).Bind(ctx, &core.Binding{
			ObjectMeta: meta.ObjectMeta{Name: p.Name, UID: p.UID}, Target: core.ObjectReference{Kind: "Node", Name: name}}, meta.CreateOptions{})
	}
	id := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	q := n.pods[id]
	if q == nil {
		n.last++
		q = &pod{uid: p.UID, ip: fmt.Sprintf("127.0.0.%d", n.last), dir: filepath.Join(n.dir, string(p.UID))}
		n.pods[id] = q
	}
	if err := q.run(ctx, n.api, p); err != nil {
		return err
	}
	if fmt.Sprint(q.status) == fmt.Sprint(p.Status) {
		return nil
	}
	p.Status = q.status
	updated, err := n.api.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, meta.UpdateOptions{})
	if err == nil {
		q.status = updated.Status
	}
	return err
}
