/*
 * gcemil: look at evidence in QuPath, mark it, and send the marks back.
 *
 * Automate > Script editor > File > Open, then Run > Run with an image open.
 * Run it once to see the evidence, mark it, and run it again to save the marks.
 *
 *   accept   evidence that is right            reject   evidence that is wrong
 *   missed   what should have been evidence and is not
 *
 * Mark by drawing annotations and setting their class, or by setting the class of evidence tiles.
 * The marks of all images then go into: gcemil review RUN reviews/
 */

// Folders beside the project; change them if yours lie elsewhere.
def evidenceFolder = buildFilePath(PROJECT_BASE_DIR, 'evidence')
def reviewFolder = buildFilePath(PROJECT_BASE_DIR, 'reviews')

def colours = [
    'accept'         : [27, 110, 58],
    'reject'         : [179, 38, 30],
    'missed'         : [230, 160, 0],
    'GCE evidence'   : [165, 15, 240],
    'Attention top-k': [31, 119, 180],
]
def marks = ['accept', 'reject', 'missed']

// The class list of the Annotations tab gets the marks; classes that are there keep their place.
def classes = colours.collect { name, rgb ->
    def found = getPathClass(name)
    found.setColor(getColorRGB(rgb[0], rgb[1], rgb[2]))
    found
}
def gui = getQuPath()
if (gui != null) {
    javafx.application.Platform.runLater {
        def shown = gui.getAvailablePathClasses()
        classes.findAll { !shown.contains(it) }.each { shown.add(it) }
    }
}

// gcemil explain writes <slide>/evidence.geojson; <slide>.geojson is taken as well.
def slide = getCurrentServer().getMetadata().getName().replaceFirst(/\.[^.]+$/, '')
def isOurs = { it.getName() != null && it.getName() ==~ /(GCE evidence|Attention top-k) #\d+/ }
def file = ["${slide}/evidence.geojson", "${slide}.geojson"].collect { new File(evidenceFolder, it) }.find { it.isFile() }
if (getAllObjects(false).any(isOurs)) {
    println "The evidence of ${slide} is here already."
} else if (file == null) {
    println "No evidence of ${slide} in ${evidenceFolder}: write it with gcemil explain RUN --slide ${slide} --out evidence/${slide}"
} else {
    importObjectsFromFile(file.getPath())
    println "Imported ${file}."
}

def marked = getAllObjects(false).findAll { it.getPathClass() != null && it.getPathClass().getName()?.toLowerCase() in marks }
def unnamed = getAnnotationObjects().findAll { it.getPathClass() == null }
if (unnamed) {
    println "${unnamed.size()} annotations have no class and are not saved: set accept, reject or missed."
}
if (marked) {
    new File(reviewFolder).mkdirs()
    def target = new File(reviewFolder, "${slide}.geojson")
    exportObjectsToGeoJson(marked, target.getPath(), 'FEATURE_COLLECTION')
    println "Saved ${marked.size()} marks to ${target}."
}
