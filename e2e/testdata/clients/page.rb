require "net/http"
require "json"
require "unlocker_mutex"

# The code of the page is here.

ETCD = ENV.fetch("ETCD")

def remove(name)
  key, range_end = ["/mutexes/#{name}/", "/mutexes/#{name}0"].map { |k| [k].pack("m0") }
  Net::HTTP.post(URI("#{ETCD}/v3/kv/deleterange"), { key: key, range_end: range_end }.to_json).value
end

led = []
answer = lead(UnlockerMutex::Client.new([ETCD]), "leader") do |lock|
  led << lock.token
  next "done" if led.size == 2

  remove("leader")
  loop { lock.check! }
end
raise "#{answer}: #{led}" unless answer == "done" && led[0] < led[1]

puts "led #{led.size} times"
